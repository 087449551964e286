import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.letta

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

/** Letta Code without a server: its agent and its models are on this machine, as far as it knows. */
const drive: Drive = async (url, prompt) => {
  const folder = await workspace()
  const local = { LETTA_LOCAL_BACKEND_EXPERIMENTAL: '1' }
  const env = { ...installed.env, ...local, LETTA_CODE_TELEM: '0', DISABLE_AUTOUPDATER: '1' }
  const { binary } = installed
  const connected = await start(binary, ['connect', 'lmstudio', '--base-url', `${url}/v1`], folder, env)
  if (connected.code !== 0) return connected
  const args = ['--backend', 'local', '--new-agent', '-m', 'lmstudio/gpt-4o', '--yolo', '-p', prompt]
  return start(binary, args, folder, env)
}

describe('Letta Code over Chat Completions', () => {
  behavesBehindGovernor(drive, {
    client: 'Letta Code',
    program: PROGRAM,
    setting: '`letta connect lmstudio --base-url …`',
    call: (command) => ({ name: 'Bash', arguments: { command, description: 'step' } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
