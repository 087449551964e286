import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.gemini

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const settings = { security: { auth: { selectedType: 'gemini-api-key' } }, general: { enableAutoUpdate: false } }
  const folder = await workspace({ '.gemini/settings.json': JSON.stringify(settings) })
  return start(binary, ['-p', prompt, '--yolo', '-m', 'gemini-2.5-pro'], folder, {
    GOOGLE_GEMINI_BASE_URL: url,
    GEMINI_API_KEY: 'test',
    GEMINI_CLI_TRUST_WORKSPACE: 'true',
    GEMINI_CLI_NO_RELAUNCH: 'true',
    GEMINI_TELEMETRY_ENABLED: 'false',
  })
}

describe('gemini-cli over Gemini', () => {
  behavesBehindGovernor(drive, {
    client: 'gemini-cli',
    program: PROGRAM,
    setting: '`GOOGLE_GEMINI_BASE_URL`',
    call: (command) => ({ name: 'run_shell_command', arguments: { command, description: 'step' } }),
    // It reports the fifth equal call to the model itself.
    blockedAt: 6,
    isTurn: ({ json }) => JSON.stringify(json.tools ?? []).includes('run_shell_command'),
  })
})
