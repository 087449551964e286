import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, type Program, start, workspace } from './program.ts'

const PROGRAM: Program = { name: '@mariozechner/pi-coding-agent', version: '0.73.1', bin: 'pi' }

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

/** pi takes the place of a provider's API from its list of models. */
const drive: Drive = async (url, prompt) => {
  const models = { providers: { anthropic: { baseUrl: url, apiKey: 'sk-ant-test' } } }
  const folder = await workspace({ '.pi/agent/models.json': JSON.stringify(models) })
  const args = ['-p', '--provider', 'anthropic', '--model', 'claude-sonnet-4-5', prompt]
  return start(binary, args, folder, { ANTHROPIC_API_KEY: 'sk-ant-test' })
}

describe('pi over Messages', () => {
  behavesBehindGovernor(drive, {
    client: 'pi',
    program: PROGRAM,
    setting: '`baseUrl` in `models.json`',
    call: (command) => ({ name: 'bash', arguments: { command } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
