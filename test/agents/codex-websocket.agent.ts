/** codex over its own WebSocket: counted, told, blocked and stopped, and on HTTP at once where the provider has none. */
import { beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { type ScriptedCall, startProvider } from '../support/provider.ts'
import type { Drive } from './behaviour.ts'
import { install, PROGRAMS, start, workspace } from './program.ts'
import {
  behavesOverWebSocket,
  DONE,
  finished,
  note,
  PROMPT,
  type SocketAgent,
  startBoth,
  startTurns,
  steps,
} from './socket-behaviour.ts'

const PROGRAM = PROGRAMS.codex

let binary = ''
beforeAll(async () => {
  binary = await install(PROGRAM)
})

const run = (command: string): ScriptedCall => ({ name: 'exec_command', arguments: { cmd: command } })
const codex: SocketAgent = { client: 'codex', program: PROGRAM, setting: '`openai_base_url`', call: run }

const drive: Drive = async (url, prompt) => {
  const folder = await workspace({ '.codex/config.toml': `openai_base_url = "${url}/v1"\nmodel = "gpt-5"\n` })
  const args = ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', prompt]
  return start(binary, args, folder, { OPENAI_API_KEY: 'sk-test' })
}

describe('codex over its WebSocket', () => {
  it('gives the same answer as without Governor, after the same messages, in one counted session', async () => {
    const direct = await startTurns(steps(codex, 3))
    finished(await drive(direct.url, PROMPT), DONE)
    const { url, provider, ended } = await startBoth(steps(codex, 3))
    finished(await drive(url, PROMPT), DONE)
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

  behavesOverWebSocket(drive, codex)

  it('sends everything again when the connection has lost its state', async () => {
    const { url, provider, ended } = await startBoth((message, turn) => {
      if (turn === 3) {
        const code = 'previous_response_not_found'
        return { status: 400, body: { error: { type: 'invalid_request_error', code, message: 'Lost.' } } }
      }
      return steps(codex, 4)(message, turn)
    })
    finished({ ...(await drive(url, PROMPT)), stderr: '' }, DONE)
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
    finished({ ...(await drive(url, PROMPT)), stderr: '' }, DONE)
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
    const { url, events } = await startGovernor(provider.url)
    const ran = await drive(url, PROMPT)
    finished({ ...ran, stderr: '' }, DONE)
    expect(ran.stderr).not.toMatch(/Reconnecting/)
    const lines = ran.stderr.split('\n').filter((line) => line.includes('ERROR')).length
    note(codex, { upgrade: `the answer over HTTP; ${lines} line${lines === 1 ? '' : 's'} in its log` })
    expect(events.some((event) => event.kind === 'request_ended' && event.method === 'POST')).toBe(true)
  })
})
