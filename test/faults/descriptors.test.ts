/** The built program with few file descriptors, and with more clients than it has of them. */
import { fetch as undiciFetch } from 'undici'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { callModel, START } from '../support/agent.ts'
import { startProcess } from '../support/process.ts'
import { runaway, startProvider } from '../support/provider.ts'
import { connect } from '../support/raw.ts'
import { startHoldingProvider } from './holding-provider.ts'

const FEW = { shell: 'ulimit -n 256' }
const CLIENTS = 400
/** As many connections of clients as 256 descriptors allow. */
const OPEN = 192

/** Where a connection is closed as soon as it is there, Node 20's own may never settle. */
const settlingFetch = undiciFetch as unknown as typeof globalThis.fetch

const HEADERS = { connection: 'close' }

describe('a process that may have 256 files open', () => {
  it('answers the streams that it has no connection for with an honest 503, finishes all others, and serves as ever afterwards', async () => {
    const provider = await startHoldingProvider()
    const governor = await startProcess(provider.url, {}, FEW)
    provider.hold()
    const outcomes: string[] = []
    const ask = async (session: string): Promise<void> => {
      try {
        const headers = { ...HEADERS, 'x-governor-session': session }
        const { status, finish } = await callModel(governor.url, START, { stream: true, headers, fetch: settlingFetch })
        outcomes.push(`${status} ${finish}`)
      } catch (error) {
        outcomes.push(error instanceof TypeError ? 'no connection' : String(error))
      }
    }
    const asked = Array.from({ length: CLIENTS }, (_, at) => ask(String(at)))
    await vi.waitFor(() => expect(provider.held() + outcomes.length).toBe(CLIENTS), 50_000)
    expect(outcomes).toContain('503 null')
    provider.release()
    await Promise.all(asked)
    const answered = outcomes.filter((outcome) => outcome !== 'no connection')
    expect(new Set(answered)).toEqual(new Set(['200 tool_calls', '503 null']))
    const refused = outcomes.filter((outcome) => outcome === '503 null').length
    const told = () => governor.log.filter((line) => line.includes('"failure":"out_of_connections"'))
    // The lines come through a pipe.
    await vi.waitFor(() => expect(told().length).toBeGreaterThanOrEqual(refused), 20_000)
    expect(told()[0]).toContain('limit on open files')
    // The provider is not to blame: nobody asked it.
    expect(governor.log.join('\n')).not.toContain('upstream_unreachable')
    outcomes.length = 0
    await Promise.all(Array.from({ length: 50 }, (_, at) => ask(String(at))))
    expect(outcomes).toEqual(Array(50).fill('200 tool_calls'))
    expect(governor.complaints()).toBe('')
  }, 120_000)

  it('serves those that came first while others only hold connections open, and says so once', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const governor = await startProcess(provider.url, {}, FEW)
    const clients = Array.from({ length: CLIENTS }, () => connect(governor.url))
    onTestFinished(() => {
      for (const { socket } of clients) socket.destroy()
    })
    const closed = () => clients.filter(({ socket }) => socket.destroyed)
    await vi.waitFor(() => expect(closed().length).toBe(CLIENTS - OPEN), 50_000)
    const body = JSON.stringify({ model: 'gpt-test', messages: START, tools: [{ type: 'function' }] })
    for (const client of clients.filter(({ socket }) => !socket.destroyed).slice(0, 20)) {
      client.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${body.length}\r\n\r\n${body}`)
      expect(await client.message()).toMatchObject({ line: 'HTTP/1.1 200 OK', isComplete: true })
    }
    for (const { socket } of clients) socket.destroy()
    await vi.waitFor(async () => {
      const { status } = await callModel(governor.url, START, { headers: HEADERS })
      expect(status).toBe(200)
    }, 20_000)
    expect(await governor.metric('governor_connections_refused_total')).toBeGreaterThanOrEqual(CLIENTS - OPEN)
    const told = governor.log.filter((line) => line.includes('connections refused'))
    expect(told.map((line) => JSON.parse(line))).toEqual([expect.objectContaining({ level: 40, open: OPEN })])
  }, 120_000)
})
