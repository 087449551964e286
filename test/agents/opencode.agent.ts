import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.opencode

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  const options = { baseURL: `${url}/v1`, apiKey: 'sk-test' }
  const config = { provider: { openai: { options } }, autoupdate: false, share: 'disabled' }
  const folder = await workspace({ 'opencode.json': JSON.stringify(config) })
  return start(binary, ['run', '-m', 'openai/gpt-5', prompt], folder, {
    OPENCODE_DISABLE_AUTOUPDATE: '1',
    OPENCODE_DISABLE_MODELS_FETCH: '1',
    OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
  })
}

describe('opencode over Responses', () => {
  behavesBehindGovernor(drive, {
    client: 'opencode',
    program: PROGRAM,
    setting: '`baseURL` in `opencode.json`',
    call: (command) => ({ name: 'bash', arguments: { command, description: 'step' } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
    session: 'session-id',
  })
})
