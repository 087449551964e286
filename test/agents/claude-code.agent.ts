import { beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { type Running, startBoth, startGovernor } from '../support/governor.ts'
import { type Received, startProvider } from '../support/provider.ts'
import { behavesBehindGovernor, type Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'

const PROGRAM = PROGRAMS.claude

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const PROMPT = 'Run the steps you planned, then say that you are done.'

const directAt = (url: string): Record<string, string> => ({
  ANTHROPIC_BASE_URL: url,
  ANTHROPIC_API_KEY: 'sk-ant-test',
})

const vertexAt = (url: string): Record<string, string> => ({
  CLAUDE_CODE_USE_VERTEX: '1',
  CLAUDE_CODE_SKIP_VERTEX_AUTH: '1',
  ANTHROPIC_VERTEX_BASE_URL: `${url}/vertex/v1`,
  ANTHROPIC_VERTEX_PROJECT_ID: 'p',
  CLOUD_ML_REGION: 'us-east5',
})

const runIn = (folder: string, url: string, prompt: string, more: readonly string[] = [], own = directAt(url)) => {
  const args = ['-p', prompt, '--model', 'claude-sonnet-4-5', '--allowedTools', 'Bash,Agent', ...more]
  return start(binary, args, folder, {
    ...own,
    CLAUDE_CONFIG_DIR: `${folder}/.claude`,
    DISABLE_AUTOUPDATER: '1',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    IS_SANDBOX: '1',
  })
}

const drive: Drive = async (url, prompt) => runIn(await workspace(), url, prompt)

const ends = ({ events }: Running) =>
  events.flatMap((event) => (event.kind === 'request_ended' && event.iteration ? [event] : []))

const choosesNone = ({ json }: Pick<Received, 'json'>) =>
  (json.tool_choice as { type?: string } | undefined)?.type === 'none'

describe('Claude Code', () => {
  behavesBehindGovernor(drive, {
    client: 'Claude Code',
    program: PROGRAM,
    setting: '`ANTHROPIC_BASE_URL`',
    call: (command) => ({ name: 'Bash', arguments: { command, description: 'step' } }),
    isTurn: ({ json }) => (json.tools?.length ?? 0) > 0,
    session: 'x-claude-code-session-id',
  })

  it('continues its session when it is resumed, with a new run', async () => {
    const running = await startBoth(({ json }) =>
      JSON.stringify(json.messages.at(-1)).includes('tool_result')
        ? { text: 'All done.' }
        : { calls: [{ name: 'Bash', arguments: { command: 'echo a', description: 'step' } }] },
    )
    const folder = await workspace()
    expect((await runIn(folder, running.url, PROMPT)).code).toBe(0)
    const { code, stdout } = await runIn(folder, running.url, 'Once more, please.', ['--continue'])
    expect([code, stdout.trim()]).toEqual([0, 'All done.'])
    expect(ends(running).map(({ iteration }) => iteration)).toEqual([1, 2, 1, 2])
    expect(new Set(ends(running).map(({ session }) => session)).size).toBe(1)
  })

  it('ends a run over Vertex AI with the model’s answer, in the session that it names', async () => {
    const provider = await startProvider(({ json }, number) =>
      choosesNone({ json }) || !json.tools?.length
        ? { text: 'This is what I found so far.' }
        : { calls: [{ name: 'Bash', arguments: { command: `echo ${number}`, description: 'step' } }] },
    )
    onTestFinished(provider.close)
    const running = await startGovernor('http://127.0.0.1:1', {
      upstreams: { vertex: { url: provider.url } },
      budget: { max_iterations: 4 },
    })
    const { code, stdout, stderr } = await runIn(await workspace(), running.url, PROMPT, [], vertexAt(running.url))
    expect([code, stdout.trim()], stderr).toEqual([0, 'This is what I found so far.'])
    expect(ends(running).map(({ iteration }) => iteration)).toEqual([1, 2, 3, 4, 4])
    expect(new Set(ends(running).map(({ session }) => session)).size).toBe(1)
  })

  it('can limit its sub-agents to less than its own budget', async () => {
    const isSub = ({ header }: Received) => header('x-claude-code-agent-id') !== undefined
    let isAsked = false
    const running = await startBoth(
      (request) => {
        if (isSub(request)) {
          if (choosesNone(request)) return { text: 'What the helper found.' }
          return { calls: [{ name: 'Bash', arguments: { command: 'ls', description: 'look' } }] }
        }
        if (isAsked) return { text: 'All done.' }
        isAsked = true
        const input = { description: 'look', prompt: 'Look around.', subagent_type: 'general-purpose' }
        return { calls: [{ name: 'Agent', arguments: input }] }
      },
      {
        loop_guard: { enabled: false },
        overrides: [{ header: { 'x-claude-code-agent-id': '*' }, budget: { max_iterations: 3 } }],
      },
    )
    const { code, stdout, stderr } = await runIn(await workspace(), running.url, PROMPT)
    expect(code, stderr).toBe(0)
    expect(stdout).toContain('All done.')
    await running.until((event) => event.kind === 'stopped')
    expect(running.provider.requests.filter(isSub)).toHaveLength(4)
    expect(new Set(ends(running).map(({ session }) => session)).size).toBe(1)
  })
})
