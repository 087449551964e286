/** Scopes of time count and end requests that Governor cannot read or judge. */
import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { DIALECTS as GUARDED } from '../../src/dialect/index.ts'
import { ask } from '../support/admin.ts'
import { startGovernor } from '../support/governor.ts'
import { human, SYSTEM, searcher, startModel } from '../support/shortened-agent.ts'
import { DIALECTS, type DialectName, FORMS, readAnswer } from '../support/transcripts.ts'

const LONG = 'x'.repeat(200_000)
const CASES = DIALECTS.flatMap((dialect) =>
  [true, false].flatMap((stream) => ['first', 'last'].map((place) => ({ dialect, stream, place }))),
)

async function start(config: object, options: object = {}) {
  const model = await startModel(searcher)
  onTestFinished(() => model.close())
  const server = { max_guarded_body: '64kb' }
  return { ...(await startGovernor(model.url, { server, ...config }, options)), model }
}

/** Returns the body of a request. `place`: where its flag for streams stands. */
function bodyOf(dialect: DialectName, stream: boolean, place: string, text: string): string {
  const body = FORMS[dialect].body([SYSTEM, human(text)])
  return JSON.stringify(place === 'first' ? { stream, ...body } : { ...body, stream })
}

function send(url: string, dialect: DialectName, stream: boolean, place: string, text: string): Promise<Response> {
  const { path, headers } = FORMS[dialect]
  return fetch(url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers('sk-1') },
    body: bodyOf(dialect, stream, place, text),
  })
}

/** Sends a body without its length, in pieces of these sizes and the rest; returns the text of the response. */
function sendPieces(url: string, dialect: DialectName, body: string, sizes: readonly number[]): Promise<string> {
  const { path, headers } = FORMS[dialect]
  return new Promise((resolve, reject) => {
    const request = http.request(url + path, { method: 'POST', headers: headers('sk-1') }, (response) => {
      let text = ''
      response.setEncoding('utf8').on('data', (piece: string) => {
        text += piece
      })
      response.once('end', () => resolve(text))
    })
    request.once('error', reject)
    let at = 0
    const next = () => {
      const size = sizes[at++]
      if (size === undefined || size >= body.length) return request.end(body)
      request.write(body.slice(0, size), () => setImmediate(next))
      body = body.slice(size)
    }
    next()
  })
}

describe('a body that is too large to be read', () => {
  it.each(CASES)('is counted, and ended at a limit: $dialect, stream: $stream, said $place', async (one) => {
    const { dialect, stream, place } = one
    const { url, model } = await start({ budget: { day: { max_iterations: 2 } } })
    for (let at = 0; at < 2; at++) {
      const response = await send(url, dialect, stream, place, LONG)
      expect(readAnswer(dialect, await response.text(), stream)).toMatchObject({ hasEnded: true, governor: undefined })
    }
    const { json } = await ask(url, '/governor/budget')
    expect(json).toMatchObject({ budget: [{ used: { iterations: 2 }, reserved: { iterations: 0 } }] })
    const [{ used } = { used: { tokens: 0 } }] = (json as { budget: { used: { tokens: number } }[] }).budget
    // Where the provider states no usage, the prompt is estimated by its bytes.
    expect(used.tokens).toBeGreaterThanOrEqual(220)
    const response = await send(url, dialect, stream, place, LONG)
    expect(response.status).toBe(200)
    const answer = readAnswer(dialect, await response.text(), stream)
    expect(answer).toMatchObject({ hasEnded: true, calls: [], governor: { scope: 'day', has_final_answer: false } })
    expect(answer.text).toContain("today's iteration limit, 2, is used up")
    expect(model.requests).toHaveLength(2)
    expect(model.requests.every(({ text }) => text.includes(LONG))).toBe(true)
  })

  it('is known by its ends, however it comes in pieces of unknown number', async () => {
    const { url } = await start({ budget: { day: { max_iterations: 1 } } })
    expect((await send(url, 'chat', false, 'last', 'Go.')).status).toBe(200)
    const sizes = fc.array(fc.integer({ min: 1, max: 90_000 }), { minLength: 1, maxLength: 8 })
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...CASES), sizes, async ({ dialect, stream, place }, pieces) => {
        const text = await sendPieces(url, dialect, bodyOf(dialect, stream, place, LONG), pieces)
        const answer = readAnswer(dialect, text, stream)
        expect(answer).toMatchObject({ hasEnded: true, governor: { scope: 'day' } })
        expect(text).toMatch(/"model":"(?:gpt|claude)-test"/)
      }),
      { numRuns: 40 },
    )
  })

  it('is estimated by all its bytes where its length is not known before', async () => {
    const { url } = await start({ budget: { day: { max_tokens: 1e6 } } })
    await sendPieces(url, 'chat', bodyOf('chat', true, 'first', LONG), [1_000, 70_000])
    const { json } = await ask(url, '/governor/budget')
    const [{ used } = { used: { tokens: 0 } }] = (json as { budget: { used: { tokens: number } }[] }).budget
    expect(used.tokens).toBeGreaterThanOrEqual(LONG.length / 4)
  })

  it('passes where there is no limit of a scope of time, and where a limit is only for models', async () => {
    for (const budget of [{ max_iterations: 1 }, { day: { per: 'model', max_iterations: 1 } }]) {
      const { url, model } = await start({ budget })
      for (let at = 0; at < 3; at++) expect((await send(url, 'chat', false, 'last', LONG)).status).toBe(200)
      expect(model.requests).toHaveLength(3)
    }
  })
})

describe('a body that is small, but can not be read', () => {
  const bodies: readonly (readonly [string, string, Record<string, string>])[] = [
    ['cut JSON', '{"model":"gpt-test","messages":[', {}],
    ['cut JSON of a stream', '{"stream":true,"input":[', {}],
    ['no JSON', 'hello', {}],
    ['an unknown coding', 'hello', { 'content-encoding': 'x-unknown' }],
  ]
  const ways = DIALECTS.flatMap((dialect) => bodies.map(([name, body, more]) => ({ dialect, name, body, more })))

  it.each(ways)('goes to its provider, is counted, and ended at a limit: $dialect, $name', async (one) => {
    const { dialect, body, more } = one
    let requests = 0
    const provider = http.createServer((request, response) => {
      requests++
      request.resume().once('end', () => response.setHeader('content-type', 'application/json').end('{}'))
    })
    await once(provider.listen(0, '127.0.0.1'), 'listening')
    onTestFinished(() => void provider.close())
    const { port } = provider.address() as AddressInfo
    const { url } = await startGovernor(`http://127.0.0.1:${port}`, { budget: { day: { max_iterations: 1 } } })
    const { path, headers } = FORMS[dialect]
    const next = () => fetch(url + path, { method: 'POST', headers: { ...headers('sk-1'), ...more }, body })
    const first = await next()
    expect([first.status, await first.text()]).toEqual([200, '{}'])
    expect((await ask(url, '/governor/budget')).json).toMatchObject({ budget: [{ used: { iterations: 1 } }] })
    const second = await next()
    expect(second.status).toBe(200)
    expect(await second.text()).toContain("today's iteration limit, 1, is used up")
    expect(requests).toBe(1)
  })
})

describe('a fault before a request is judged', () => {
  it.each(CASES.filter(({ place }) => place === 'last'))(
    'leaves a limit of a day: $dialect, stream: $stream',
    async (one) => {
      const { dialect, stream, place } = one
      let isBroken = false
      const dialects = GUARDED.map((known) => ({
        ...known,
        read(...of: Parameters<typeof known.read>) {
          const read = known.read(...of)
          if (!read || !isBroken || !of[0].body.includes('Find it.')) return read
          return {
            ...read,
            demands: () => {
              throw new Error('a fault')
            },
          }
        },
      }))
      const { url, model, events } = await start({ budget: { day: { max_iterations: 2 } } }, { dialects })
      const next = () => send(url, dialect, stream, place, 'Find it.')
      expect(readAnswer(dialect, await (await next()).text(), stream).governor).toBeUndefined()
      isBroken = true
      expect(readAnswer(dialect, await (await next()).text(), stream).governor).toBeUndefined()
      expect(events).toContainEqual(expect.objectContaining({ kind: 'failed_open', reason: 'fault' }))
      const ended = readAnswer(dialect, await (await next()).text(), stream)
      expect(ended).toMatchObject({ hasEnded: true, governor: { scope: 'day' } })
      expect(model.requests).toHaveLength(2)
    },
  )
})
