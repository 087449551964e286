import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.pi

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const models = { providers: { openai: { baseUrl: `${url}/v1`, apiKey: 'sk-test' } } }
  const folder = await workspace({ '.pi/agent/models.json': JSON.stringify(models) })
  const args = ['-p', '--provider', 'openai', '--model', 'gpt-5', prompt]
  return start(installed.binary, args, folder, { ...installed.env, OPENAI_API_KEY: 'sk-test' })
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
