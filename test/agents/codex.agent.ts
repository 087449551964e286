import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.codex

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

/** codex does not look at OPENAI_BASE_URL: the address of the API is in its configuration. */
const drive: Drive = async (url, prompt) => {
  const folder = await workspace({
    '.codex/config.toml': `openai_base_url = "${url}/v1"\nmodel = "gpt-5"\n`,
  })
  const args = ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', prompt]
  const ran = await start(binary, args, folder, { OPENAI_API_KEY: 'sk-test' })
  // It notes its session, its folder and the time there, and what became of the WebSocket that it tries first.
  return ran.code === 0 ? { ...ran, stderr: '' } : ran
}

// The scripted provider has no WebSockets: codex over its own is in codex-websocket.agent.ts.
describe('codex over HTTP', () => {
  behavesBehindGovernor(drive, {
    client: 'codex, without WebSockets',
    program: PROGRAM,
    setting: '`openai_base_url`',
    call: (command) => ({ name: 'exec_command', arguments: { cmd: command } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
    session: 'session-id',
  })
})
