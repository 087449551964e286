import { beforeAll, describe } from 'vitest'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.qwen

let installed: Awaited<ReturnType<typeof installForNode22>>
beforeAll(async () => {
  installed = await installForNode22(PROGRAM)
})

/** Drives it over one of the APIs that it speaks. */
const driveOver =
  (auth: string, model: string, variables: (url: string) => Readonly<Record<string, string>>): Drive =>
  async (url, prompt) => {
    // Otherwise an agent of its own looks for things to remember after each run.
    const memory = { enableManagedAutoMemory: false, enableManagedAutoDream: false }
    const settings = { memory, general: { enableAutoUpdate: false } }
    const folder = await workspace({ '.qwen/settings.json': JSON.stringify(settings) })
    const args = ['-p', prompt, '--yolo', '--auth-type', auth, '-m', model]
    const env = { ...installed.env, ...variables(url), QWEN_CODE_SUPPRESS_YOLO_WARNING: '1' }
    return start(installed.binary, args, folder, env)
  }

const AGENT = {
  program: PROGRAM,
  call: (command: string) => ({
    name: 'run_shell_command',
    arguments: { command, description: 'step', is_background: false },
  }),
  // It ends itself at the fifth equal call, with exit code 1.
  blockedAt: 5,
  guard: { max_warnings_before_block: 1 },
}

describe('qwen-code over Chat Completions', () => {
  const drive = driveOver('openai', 'qwen3-coder-plus', (url) => ({
    OPENAI_API_KEY: 'sk-test',
    OPENAI_BASE_URL: `${url}/v1`,
  }))
  behavesBehindGovernor(drive, {
    ...AGENT,
    client: 'qwen-code',
    setting: '`OPENAI_BASE_URL`',
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
  })
})

describe('qwen-code over Gemini', () => {
  const drive = driveOver('gemini', 'gemini-2.5-pro', (url) => ({
    GEMINI_API_KEY: 'test',
    GOOGLE_GEMINI_BASE_URL: url,
  }))
  behavesBehindGovernor(drive, {
    ...AGENT,
    client: 'qwen-code over Gemini',
    setting: '`GOOGLE_GEMINI_BASE_URL`',
    isTurn: ({ json }) => JSON.stringify(json.tools ?? []).includes('run_shell_command'),
  })
})
