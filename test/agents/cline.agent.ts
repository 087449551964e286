import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.cline

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

/** What `cline auth --provider openai-compatible --baseurl …` writes. */
const drive: Drive = async (url, prompt) => {
  const provider = 'openai-compatible'
  const settings = { provider, apiKey: 'sk-test', model: 'gpt-4o', baseUrl: `${url}/v1` }
  const known = { settings, updatedAt: '2026-11-27T00:00:00.000Z', tokenSource: 'manual' }
  const providers = { version: 1, lastUsedProvider: provider, modes: {}, providers: { [provider]: known } }
  const folder = await workspace({ '.cline/data/settings/providers.json': JSON.stringify(providers) })
  const ran = await start(binary, ['-P', provider, '-m', 'gpt-4o', prompt], folder, { CLINE_NO_AUTO_UPDATE: '1' })
  // Warnings of its libraries.
  return ran.code === 0 ? { ...ran, stderr: '' } : ran
}

describe('cline over Chat Completions', () => {
  behavesBehindGovernor(drive, {
    client: 'cline',
    program: PROGRAM,
    setting: '`cline auth --baseurl …`',
    call: (command) => ({ name: 'run_commands', arguments: { commands: [command] } }),
    // It ends itself at the fifth equal call, without an answer.
    blockedAt: 5,
    guard: { max_warnings_before_block: 1 },
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
