/** codex over its own WebSocket: counted, told, blocked and stopped, and on HTTP at once where the provider has none. */
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { type ScriptedCall, startProvider } from '../support/provider.ts'
import { type ReceivedMessage, type SocketAnswer, startSocketProvider } from '../support/websocket-provider.ts'
import { install, type Program, type Ran, start, workspace } from './program.ts'
import { type Result, record, seenIn } from './results.ts'

const PROGRAM: Program = { name: '@openai/codex', version: '0.171.0', bin: 'codex' }
const PROMPT = 'Run the steps you planned, one after the other, then say that you are done.'
const DONE = 'All done: 42.'
const HEADERS = ['x-codex-turn-state: t1', 'x-reasoning-included: true', 'x-models-etag: e1', 'openai-model: gpt-5']

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const run = (command: string): ScriptedCall => ({ name: 'exec_command', arguments: { cmd: command } })

async function drive(url: string, settings = ''): Promise<Ran> {
  const folder = await workspace({
    '.codex/config.toml': `openai_base_url = "${url}/v1"\nmodel = "gpt-5"\n${settings}`,
  })
  const args = ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', PROMPT]
  return start(binary, args, folder, { OPENAI_API_KEY: 'sk-test' })
}

type Turn = (message: ReceivedMessage, turn: number) => SocketAnswer

async function startBoth(turn: Turn, config: { [key: string]: unknown } = {}) {
  let turns = 0
  const provider = await startSocketProvider((message) => turn(message, ++turns), { headers: HEADERS })
  onTestFinished(() => provider.close())
  const governor = await startGovernor(provider.url, { ...config, server: { websocket: 'guard' } })
  const ended = () => governor.events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
  return { provider, ended, ...governor }
}

const steps = (count: number): Turn => {
  return (_, turn) => (turn <= count ? { text: 'Working. ', calls: [run(`echo step-${turn}`)] } : { text: DONE })
}

function finished(ran: Ran, text: string): void {
  expect(ran.code, ran.stderr + ran.stdout).toBe(0)
  expect(ran.stdout).toContain(text)
  expect(ran.stderr).not.toMatch(/ERROR|[Rr]econnecting/)
}

const note = (seen: Partial<Result>) => {
  const { name, version } = PROGRAM
  record('codex', { package: name, version, setting: '`openai_base_url`', over: 'Responses over WebSocket', ...seen })
}

describe('codex over its WebSocket', () => {
  it('gives the same answer as without Governor, after the same messages, in one counted session', async () => {
    const direct = await startSocketProvider((message, number) => steps(3)(message, number - 1), { headers: HEADERS })
    onTestFinished(() => direct.close())
    finished(await drive(direct.url), DONE)
    const { url, provider, ended } = await startBoth(steps(3))
    finished(await drive(url), DONE)
    expect(provider.connections.length).toBe(1)
    expect(provider.posts).toEqual(direct.posts)
    expect(provider.received.length).toBe(direct.received.length)
    // The first request only warms the connection up.
    expect(ended().map(({ iteration }) => iteration)).toEqual([undefined, 1, 2, 3, 4])
    expect(
      ended()
        .slice(1)
        .every(({ verdict, method }) => verdict === 'allow' && method === 'WEBSOCKET'),
    ).toBe(true)
    expect(
      new Set(
        ended()
          .slice(1)
          .map(({ session }) => session),
      ),
    ).toEqual(new Set([provider.received[0]?.headers['session-id']]))
  })

  it('gets a notice when its budget runs low', async () => {
    const { url, provider } = await startBoth(steps(4), { budget: { max_iterations: 6, adaptive: false } })
    const ran = await drive(url)
    finished(ran, DONE)
    const told = provider.received.slice(1).map(({ text }) => /\[BUDGET: Iteration (\d)\/6/.exec(text)?.[1])
    expect(told).toEqual([undefined, undefined, undefined, undefined, '5'])
    note({ caution: seenIn(ran, DONE) })
  })

  it('gets the model’s answer when it is stopped', async () => {
    const { url, events } = await startBoth(
      ({ json }, turn) =>
        json.tool_choice === 'none' ? { text: 'This is what I found so far.' } : { calls: [run(`echo step-${turn}`)] },
      { budget: { max_iterations: 4 } },
    )
    const ran = await drive(url)
    finished(ran, 'This is what I found so far.')
    expect(events).toContainEqual(expect.objectContaining({ kind: 'stopped', reason: 'max_iterations', by: 'model' }))
    note({ stop: seenIn(ran, 'This is what I found so far.') })
  })

  it('continues with the model’s next answer when its calls are blocked', async () => {
    const { url, provider, events } = await startBoth(({ items }) =>
      JSON.stringify(items).includes('[LOOP GUARD] Blocked')
        ? { text: DONE }
        : { calls: [run('echo the same words each time')] },
    )
    const ran = await drive(url)
    finished(ran, DONE)
    expect(provider.received.length).toBe(9)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'call_blocked' }))
    note({ block: seenIn(ran, DONE) })
  })

  it('sends everything again when the connection has lost its state', async () => {
    const { url, provider, ended } = await startBoth((message, turn) => {
      if (turn === 3) {
        const code = 'previous_response_not_found'
        return { status: 400, body: { error: { type: 'invalid_request_error', code, message: 'Lost.' } } }
      }
      return steps(4)(message, turn)
    })
    finished({ ...(await drive(url)), stderr: '' }, DONE)
    expect(provider.posts).toEqual([])
    expect(ended().at(-1)?.iteration).toBeGreaterThanOrEqual(4)
  })

  it('has a connection for each of its agents, which are threads with counts of their own', async () => {
    const spawn = (message: string): ScriptedCall => ({
      name: 'spawn_agent',
      namespace: 'multi_agent_v1',
      arguments: { message },
    })
    const parts = new Map<unknown, number>()
    let main = 0
    const { url, provider, events, ended } = await startBoth(({ headers }) => {
      const thread = headers['thread-id']
      if (thread === headers['session-id']) {
        main++
        if (main === 1) return { calls: [spawn('Do the first part.'), spawn('Do the second part.')] }
        // Long enough for both to end.
        return main === 2 ? { calls: [run('sleep 8')] } : { text: DONE }
      }
      const part = (parts.get(thread) ?? 0) + 1
      parts.set(thread, part)
      return part === 1 ? { calls: [run('echo part')] } : { text: 'Part done.' }
    })
    finished({ ...(await drive(url)), stderr: '' }, DONE)
    expect([...parts.values()]).toEqual([2, 2])
    expect(provider.connections.length).toBe(3)
    const counted = ended().filter(({ iteration }) => iteration !== undefined)
    expect(new Set(counted.map(({ session }) => session)).size).toBe(1)
    expect(counted.map(({ iteration }) => iteration).sort()).toEqual([1, 1, 1, 2, 2, 2, 3])
    const threads = events.flatMap((event) => (event.kind === 'answered' && event.iteration > 0 ? [event.thread] : []))
    expect(new Set(threads).size).toBe(3)
  })
})

describe('codex in front of a provider without WebSockets', () => {
  it('uses HTTP from its first request on', async () => {
    const provider = await startProvider(({ json }, number) => {
      if (!json.tools?.length) return { text: 'Steps' }
      return number <= 2 ? { calls: [run(`echo step-${number}`)] } : { text: DONE }
    })
    onTestFinished(() => provider.close())
    const { url, events } = await startGovernor(provider.url, { server: { websocket: 'guard' } })
    const ran = await drive(url)
    finished({ ...ran, stderr: '' }, DONE)
    expect(ran.stderr).not.toMatch(/Reconnecting/)
    note({ upgrade: 'the answer over HTTP' })
    expect(events.some((event) => event.kind === 'request_ended' && event.method === 'POST')).toBe(true)
  })
})
