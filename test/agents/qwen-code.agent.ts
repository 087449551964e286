import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.qwen

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

const drive: Drive = async (url, prompt) => {
  // Otherwise an agent of its own looks for things to remember after each run.
  const memory = { enableManagedAutoMemory: false, enableManagedAutoDream: false }
  const settings = { memory, general: { enableAutoUpdate: false } }
  const folder = await workspace({ '.qwen/settings.json': JSON.stringify(settings) })
  const args = ['-p', prompt, '--yolo', '--auth-type', 'openai', '-m', 'qwen3-coder-plus']
  return start(installed.binary, args, folder, {
    ...installed.env,
    OPENAI_API_KEY: 'sk-test',
    OPENAI_BASE_URL: `${url}/v1`,
    QWEN_CODE_SUPPRESS_YOLO_WARNING: '1',
  })
}

describe('qwen-code over Chat Completions', () => {
  behavesBehindGovernor(drive, {
    client: 'qwen-code',
    program: PROGRAM,
    setting: '`OPENAI_BASE_URL`',
    call: (command) => ({
      name: 'run_shell_command',
      arguments: { command, description: 'step', is_background: false },
    }),
    // It ends itself at the fifth equal call, with exit code 1.
    blockedAt: 5,
    guard: { max_warnings_before_block: 1 },
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})
