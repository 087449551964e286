/** opencode over the WebSocket that it has as an experiment. */
import { beforeAll, describe } from 'vitest'
import type { Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'
import { behavesOverWebSocket } from './socket-behaviour.ts'

const PROGRAM = PROGRAMS.opencode

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

/** It opens a WebSocket only with a key that `opencode auth login` has stored, not with one in its configuration. */
const drive: Drive = async (url, prompt) => {
  const options = { baseURL: `${url}/v1` }
  const config = { provider: { openai: { options } }, autoupdate: false, share: 'disabled' }
  const folder = await workspace({
    'opencode.json': JSON.stringify(config),
    '.local/share/opencode/auth.json': JSON.stringify({ openai: { type: 'api', key: 'sk-test' } }),
  })
  return start(binary, ['run', '-m', 'openai/gpt-5', prompt], folder, {
    OPENCODE_EXPERIMENTAL_WEBSOCKETS: '1',
    OPENCODE_DISABLE_AUTOUPDATE: '1',
    OPENCODE_DISABLE_MODELS_FETCH: '1',
    OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
  })
}

describe('opencode over its experimental WebSocket', () => {
  behavesOverWebSocket(drive, {
    client: 'opencode with `OPENCODE_EXPERIMENTAL_WEBSOCKETS=1`',
    program: PROGRAM,
    setting: '`baseURL` in `opencode.json`',
    call: (command) => ({ name: 'bash', arguments: { command, description: 'step' } }),
  })
})
