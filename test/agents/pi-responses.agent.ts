import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, type Program, start, workspace } from './program.ts'

const PROGRAM: Program = { name: '@mariozechner/pi-coding-agent', version: '0.73.1', bin: 'pi' }

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const models = { providers: { openai: { baseUrl: `${url}/v1`, apiKey: 'sk-test' } } }
  const folder = await workspace({ '.pi/agent/models.json': JSON.stringify(models) })
  const args = ['-p', '--provider', 'openai', '--model', 'gpt-5', prompt]
  return start(binary, args, folder, { OPENAI_API_KEY: 'sk-test' })
}

describe('pi over Responses', () => {
  behavesBehindGovernor(drive, {
    client: 'pi over Responses',
    program: PROGRAM,
    setting: '`baseUrl` in `models.json`',
    call: (command) => ({ name: 'bash', arguments: { command } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
    session: 'session_id',
  })
})
