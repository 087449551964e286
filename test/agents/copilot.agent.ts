import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.copilot

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

/** Copilot CLI without a GitHub login: a model and a key of its user's own. */
const drive: Drive = async (url, prompt) => {
  const ran = await start(installed.binary, ['-p', prompt, '--allow-all-tools', '--no-color'], await workspace(), {
    ...installed.env,
    COPILOT_PROVIDER_BASE_URL: `${url}/v1`,
    COPILOT_PROVIDER_API_KEY: 'sk-test',
    COPILOT_MODEL: 'gpt-4.1',
    COPILOT_OFFLINE: 'true',
    COPILOT_AUTO_UPDATE: 'false',
  })
  // It notes how long a slow step and the whole took, and a new id.
  return ran.code === 0 ? { ...ran, stderr: '', stdout: ran.stdout.replace(/ +\d+s$/gm, '') } : ran
}

describe('Copilot CLI over Chat Completions', () => {
  behavesBehindGovernor(drive, {
    client: 'Copilot CLI',
    program: PROGRAM,
    setting: '`COPILOT_PROVIDER_BASE_URL`, `COPILOT_MODEL`',
    call: (command) => ({ name: 'bash', arguments: { command, description: 'step' } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
