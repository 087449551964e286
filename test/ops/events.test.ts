import { describe, expect, it } from 'vitest'
import { act, firstSession } from '../support/admin.ts'
import { runAgent, START } from '../support/agent.ts'
import { openEvents as open, type Received } from '../support/events.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'
import { closeClients, connect } from '../support/raw.ts'

const named = (name: string) => ({ headers: { 'x-governor-session': name } })

describe('the event stream of sessions', () => {
  it('reports a session as its requests come, and what an operator does to it', async () => {
    const { url } = await startBoth(runaway())
    const { response, next } = await open(url)
    expect(response.headers.get('content-type')).toBe('text/event-stream')
    expect((await next(() => true)).event).toBe('reload')
    await runAgent(url, START, { ...named('one'), max: 2 })
    const seen = await next(({ data }) => data.iteration === 2)
    expect(seen).toMatchObject({ event: 'session', data: { state: 'working', name: 'one' } })
    await act(url, seen.data.id ?? '', 'stop')
    expect(await next(({ data }) => data.stopping === true)).toMatchObject({ event: 'session' })
  })

  it('sends a page that reconnects what it missed', async () => {
    const { url } = await startBoth(runaway())
    const first = await open(url)
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { id } = await first.next(({ event }) => event === 'session')
    first.leave()
    const other = await open(url)
    await runAgent(url, START, { ...named('two'), max: 3 })
    await other.next(({ event }) => event === 'session')
    const again = await open(url, { 'last-event-id': id })
    expect((await again.next(() => true)).event).toBe('ready')
    expect(await again.next(({ event }) => event === 'session')).toMatchObject({ data: { iteration: 3 } })
  })

  it('sends what a page missed in the order of its ids, so that one that is cut off again misses nothing', async () => {
    const { url } = await startBoth(runaway())
    const first = await open(url)
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { id } = await first.next(({ event }) => event === 'session')
    first.leave()
    const other = await open(url)
    for (const name of ['two', 'three', 'two']) {
      await runAgent(url, START, { ...named(name), max: 1 })
      await other.next(({ event, data }) => event === 'session' && data.name === name)
    }
    const again = await open(url, { 'last-event-id': id })
    const numbers: number[] = []
    while (numbers.length < 2) {
      const event = await again.next(({ event, data }) => event === 'session' && data.name !== 'one')
      numbers.push(Number(event.id.split('-').at(-1)))
    }
    expect(numbers[1]).toBeGreaterThan(numbers[0] ?? 0)
  })

  it.each(['', 'another-7', 'nonsense', `x${'9'.repeat(400)}`])(
    'tells a page to reload the list when its last event id is %j',
    async (id) => {
      const { url } = await startBoth(runaway())
      const { next } = await open(url, { 'last-event-id': id })
      expect((await next(() => true)).event).toBe('reload')
    },
  )

  it('show a burst of changes to every page, each page with what it may see', async () => {
    const { url } = await startBoth(runaway(), { ops: { admin_token: 'secret', names: 'token' } })
    const pages = await Promise.all(
      Array.from({ length: 6 }, (_, at) => open(url, at % 2 === 0 ? {} : { authorization: 'Bearer secret' })),
    )
    const names = Array.from({ length: 120 }, (_, at) => `burst ${at}`)
    await Promise.all(names.map((name) => runAgent(url, START, { ...named(name), max: 1 })))
    for (const [at, { next }] of pages.entries()) {
      const seen = new Map<string | undefined, string | null | undefined>()
      while (seen.size < names.length) {
        const { data } = await next(({ event }) => event === 'session')
        seen.set(data.id, data.name)
      }
      const shown = at % 2 === 0 ? names.map(() => null) : names
      expect([...seen.values()].sort()).toEqual([...shown].sort())
    }
  })

  it('contains names only with the token, where ops.names says so', async () => {
    const { url } = await startBoth(runaway(), { ops: { admin_token: 'secret', names: 'token' } })
    const [without, having] = [await open(url), await open(url, { authorization: 'Bearer secret' })]
    await runAgent(url, START, { ...named('my name'), max: 1 })
    const isSession = ({ event }: Received) => event === 'session'
    expect((await without.next(isSession)).data.name).toBeNull()
    expect((await having.next(isSession)).data.name).toBe('my name')
  })

  it('refuses a 65th page, and accepts one after another page has left', async () => {
    const { url } = await startBoth(runaway())
    const pages = await Promise.all(Array.from({ length: 64 }, () => open(url)))
    expect((await open(url)).response.status).toBe(503)
    for (const { leave } of pages) leave()
    await expect.poll(async () => (await open(url)).response.status).toBe(200)
  })

  it('gives the place of the page that was open for longest, or does not read, to a new one', async () => {
    let time = 1_000_000
    const { url } = await startBoth(runaway(), {}, { now: () => time })
    const silent = Array.from({ length: 64 }, () => {
      const client = connect(url)
      client.write('GET /governor/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n')
      return client
    })
    for (const client of silent) {
      expect((await client.until('\r\n\r\n')).toString()).toContain(' 200 OK')
      client.socket.pause()
    }
    expect((await open(url)).response.status).toBe(503)
    time += 10_000
    expect((await open(url)).response.status).toBe(200)
    const { id } = await (await open(url)).next(() => true)
    // All new pages find a place; a page that has lost its own gets what it missed.
    await Promise.all(
      Array.from({ length: 62 }, () => open(url).then(({ response }) => expect(response.status).toBe(200))),
    )
    expect((await open(url)).response.status).toBe(503)
    time += 10_000
    expect((await (await open(url, { 'last-event-id': id })).next(() => true)).event).toBe('ready')
    closeClients()
  })

  it('ends when Governor stops', async () => {
    const { url, governor } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { next } = await open(url)
    await next(() => true)
    expect(await governor.drain()).toBe(true)
    await expect(next(() => false)).rejects.toThrow()
    await expect(firstSession(url)).rejects.toThrow()
  })
})
