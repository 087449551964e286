/** Last answers that are larger than the memory for bodies, and clients that do not read them. */
import { once } from 'node:events'
import net from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startBoth } from '../support/governor.ts'
import { STOPPED, STREAM, send, TEXT } from '../support/stopped.ts'

const budget = { max_iterations: 1, adaptive: false }
/** Words that each are an event: long ones, as Governor's memory is about bytes. */
const WORDS = `${'word'.repeat(50)} `.repeat(6_000)
/** Events of 7 MB and more: the system keeps some 4 MB for a client that does not read. */
const MANY_WORDS = 'word '.repeat(60_000)

describe.each(STOPPED)('a streamed last answer over $name', (api) => {
  it('that is held and has no room in `server.max_buffered` is not given, and the next form is asked for', async () => {
    const answer = { body: Buffer.from(api.frames({ text: `<think>${WORDS}` }).join('')), headers: STREAM }
    const { url, provider } = await startBoth(() => answer, { budget, server: { max_buffered: '1mb' } })
    const { status, text } = await send(url, api, api.request, true)
    expect(status).toBe(200)
    expect(text).toContain('(Reached max iterations: 1)')
    expect(text).toContain('"has_final_answer":false')
    expect(text.length).toBeLessThan(100_000)
    expect(provider.requests.length).toBeGreaterThan(1)
  })

  it('that is shown ends where there is no more room, as a whole response that says so', async () => {
    const { url } = await startBoth(() => ({ text: WORDS }), { budget, server: { max_buffered: '1mb' } })
    const { status, text } = await send(url, api, api.request, true)
    expect(status).toBe(200)
    expect(text).toContain('"has_final_answer":true,"truncated":true')
    expect(api.reasonIn(text)).toBe(api.cutOff.at(-1)?.[0])
    expect(text.length).toBeLessThan(api.frames({ text: WORDS }).join('').length)
  })

  it('that its client does not read is recorded, and other requests get it meanwhile', async () => {
    const { url, provider, until } = await startBoth(() => ({ text: `${MANY_WORDS}${TEXT}` }), { budget })
    const { hostname, port } = new URL(url)
    const socket = net.connect(Number(port), hostname)
    onTestFinished(() => void socket.destroy())
    await once(socket, 'connect')
    const body = JSON.stringify({ model: 'm', ...api.request, stream: true })
    const head = `POST ${api.path} HTTP/1.1\r\nhost: ${hostname}\r\nauthorization: Bearer k\r\nanthropic-version: 2023-06-01\r\n`
    socket.pause()
    socket.write(`${head}content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`)
    await until(({ kind }) => kind === 'stopped')
    const { text } = await send(url, api, api.request, false)
    expect(text).toContain(TEXT)
    expect(provider.requests).toHaveLength(1)
  })
})
