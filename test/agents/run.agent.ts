/** `governor run -- AGENT` with the programs themselves, whose own settings lead them to another address. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { MAIN } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { serve, startProvider } from '../support/provider.ts'
import { openPane } from '../support/tmux.ts'
import { installForNode22, PROGRAMS, start, workspace } from './program.ts'

const PROMPT = 'Run the step you planned, then say that you are done.'
const DONE = 'All done: 42.'
/** Milliseconds: a test may have to download its program. */
const TIMEOUT = 700_000

interface Guarded {
  readonly program: keyof typeof PROGRAMS
  readonly args: readonly string[]
  /** Its own files, in which an address leads it elsewhere. */
  files(elsewhere: string): Readonly<Record<string, unknown>>
  /** Variables of its own, as its user sets them. */
  env(elsewhere: string): Readonly<Record<string, string>>
  /** A call of its shell tool. */
  readonly call: { readonly name: string; readonly arguments: unknown }
}

const OPENCODE_ENV = {
  OPENCODE_DISABLE_AUTOUPDATE: '1',
  OPENCODE_DISABLE_MODELS_FETCH: '1',
  OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
}

const step = { command: 'echo step', description: 'step' }

const AGENTS: Readonly<Record<string, Guarded>> = {
  'Claude Code': {
    program: 'claude',
    args: ['-p', PROMPT, '--model', 'claude-sonnet-4-5', '--allowedTools', 'Bash'],
    files: (elsewhere) => ({ '.claude/settings.json': { env: { ANTHROPIC_BASE_URL: elsewhere } } }),
    env: () => ({
      ANTHROPIC_API_KEY: 'sk-ant-test',
      DISABLE_AUTOUPDATER: '1',
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      IS_SANDBOX: '1',
    }),
    call: { name: 'Bash', arguments: step },
  },
  codex: {
    program: 'codex',
    args: ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', PROMPT],
    files: (elsewhere) => ({ '.codex/config.toml': `openai_base_url = "${elsewhere}/v1"\nmodel = "gpt-5"\n` }),
    env: () => ({ OPENAI_API_KEY: 'sk-test' }),
    call: { name: 'exec_command', arguments: { cmd: 'echo step' } },
  },
  opencode: {
    program: 'opencode',
    args: ['run', '-m', 'openai/gpt-5', PROMPT],
    files: (elsewhere) => {
      const options = { baseURL: `${elsewhere}/v1`, apiKey: 'sk-test' }
      return { 'opencode.json': { provider: { openai: { options } }, autoupdate: false, share: 'disabled' } }
    },
    env: () => OPENCODE_ENV,
    call: { name: 'bash', arguments: step },
  },
  pi: {
    program: 'pi',
    args: ['-p', '--provider', 'anthropic', '--model', 'claude-sonnet-4-5', PROMPT],
    files: (elsewhere) => ({
      '.pi/agent/models.json': { providers: { anthropic: { baseUrl: elsewhere, apiKey: 'sk-ant-test' } } },
    }),
    env: () => ({ ANTHROPIC_API_KEY: 'sk-ant-test' }),
    call: { name: 'bash', arguments: { command: 'echo step' } },
  },
  // It keeps its address in a variable alone.
  'Copilot CLI': {
    program: 'copilot',
    args: ['-p', PROMPT, '--allow-all-tools', '--no-color'],
    files: () => ({}),
    env: (elsewhere) => ({
      COPILOT_PROVIDER_BASE_URL: `${elsewhere}/v1`,
      COPILOT_PROVIDER_API_KEY: 'sk-test',
      COPILOT_MODEL: 'gpt-4.1',
      COPILOT_OFFLINE: 'true',
      COPILOT_AUTO_UPDATE: 'false',
    }),
    call: { name: 'bash', arguments: step },
  },
  'qwen-code': {
    program: 'qwen',
    args: ['-p', PROMPT, '--yolo', '--auth-type', 'openai', '-m', 'qwen3-coder-plus'],
    files: (elsewhere) => ({
      '.qwen/settings.json': {
        env: { OPENAI_BASE_URL: `${elsewhere}/v1` },
        memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false },
        general: { enableAutoUpdate: false },
      },
    }),
    env: () => ({ OPENAI_API_KEY: 'sk-test', QWEN_CODE_SUPPRESS_YOLO_WARNING: '1' }),
    call: { name: 'run_shell_command', arguments: { ...step, is_background: false } },
  },
  'gemini-cli': {
    program: 'gemini',
    args: ['-p', PROMPT, '--yolo', '-m', 'gemini-2.5-pro'],
    files: (elsewhere) => ({
      '.gemini/.env': `GOOGLE_GEMINI_BASE_URL=${elsewhere}\n`,
      '.gemini/settings.json': {
        security: { auth: { selectedType: 'gemini-api-key' } },
        general: { enableAutoUpdate: false },
      },
    }),
    env: () => ({
      GEMINI_API_KEY: 'test',
      GEMINI_CLI_TRUST_WORKSPACE: 'true',
      GEMINI_CLI_NO_RELAUNCH: 'true',
      GEMINI_TELEMETRY_ENABLED: 'false',
    }),
    call: { name: 'run_shell_command', arguments: step },
  },
}

/** Starts a provider that asks for one step, then says that all is done; a request without that tool is a title. */
async function startSteps(call: Guarded['call']) {
  let turn = 0
  const provider = await startProvider(({ json }) => {
    if (!JSON.stringify(json.tools ?? []).includes(call.name)) return { text: 'Steps' }
    return turn++ === 0 ? { text: 'Working. ', calls: [call] } : { text: DONE }
  })
  onTestFinished(() => provider.close())
  return provider
}

const asText = (file: unknown) => (typeof file === 'string' ? file : JSON.stringify(file))

describe('governor run', () => {
  it.each(Object.keys(AGENTS))(
    'guards %s, though its own settings name another address',
    async (name) => {
      const agent = AGENTS[name] as Guarded
      const { binary, env } = await installForNode22(PROGRAMS[agent.program])
      const provider = await startSteps(agent.call)
      const reached: string[] = []
      const elsewhere = await serve(({ method, url }, response) => {
        reached.push(`${method} ${url}`)
        response.writeHead(400).end()
      })
      onTestFinished(() => elsewhere.close())
      const files = Object.entries(agent.files(elsewhere.url)).map(([path, file]) => [path, asText(file)] as const)
      const ran = await start(
        process.execPath,
        [MAIN, 'run', '--', binary, ...agent.args],
        await workspace(Object.fromEntries(files)),
        {
          ...env,
          OPENAI_UPSTREAM_URL: provider.url,
          ANTHROPIC_UPSTREAM_URL: provider.url,
          GEMINI_UPSTREAM_URL: provider.url,
          ...agent.env(elsewhere.url),
        },
      )
      expect(reached, ran.stderr + ran.stdout).toEqual([])
      expect(ran.code, ran.stderr + ran.stdout).toBe(0)
      expect(ran.stdout).toContain(DONE)
      expect(ran.stderr).toContain(`governor: guards ${binary}\n`)
      expect(ran.stderr).toMatch(
        /\ngovernor: \d+ requests, 2 iterations, [\d.]+k? tokens, .+\n {10}0 notices, 0 loops, 0 stops\n$/,
      )
    },
    TIMEOUT,
  )
})

describeWith('tmux', 'governor run on a terminal', () => {
  it(
    'says in red that codex was not guarded at a provider of its user, and what to write in which file',
    async () => {
      const { binary, env } = await installForNode22(PROGRAMS.codex)
      const provider = await startSteps({ name: 'exec_command', arguments: { cmd: 'echo step' } })
      const own = `${provider.url}/v1`
      const settings = `model = "gpt-5"
model_provider = "mine"
[model_providers.mine]
name = "Mine"
base_url = "${own}"
wire_api = "responses"
env_key = "MY_KEY"
`
      const folder = await workspace({ '.codex/config.toml': settings })
      const pane = await openPane(240, 60, { ...env, HOME: folder, MY_KEY: 'sk-test' })
      const args = '--skip-git-repo-check --dangerously-bypass-approvals-and-sandbox'
      await pane.enter(
        `cd ${folder}; clear; ${process.execPath} ${MAIN} run -- ${binary} exec ${args} 'Go on.' < /dev/null`,
      )
      await pane.shows('use governor run')
      const screen = await pane.screen(true)
      expect(screen).toContain(`[31m${binary} was not guarded: no request of it that Governor guards came through`)
      const write = `~/.codex/config.toml leads it to ${own}: write http://127.0.0.1:8787/v1 there`
      expect(screen).toContain(`${write}, and use governor run --port 8787 --upstream ${own}`)
      expect(screen).not.toContain('governor: guards')
      expect(provider.requests.length).toBeGreaterThan(0)
    },
    TIMEOUT,
  )
})
