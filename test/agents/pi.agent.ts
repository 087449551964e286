import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.pi

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

/** pi takes the place of a provider's API from its list of models. */
const drive: Drive = async (url, prompt) => {
  const models = { providers: { anthropic: { baseUrl: url, apiKey: 'sk-ant-test' } } }
  const folder = await workspace({ '.pi/agent/models.json': JSON.stringify(models) })
  const args = ['-p', '--provider', 'anthropic', '--model', 'claude-sonnet-4-5', prompt]
  return start(installed.binary, args, folder, { ...installed.env, ANTHROPIC_API_KEY: 'sk-ant-test' })
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
