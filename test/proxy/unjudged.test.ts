/** Scopes of time count and end requests that Governor cannot read or judge. */
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

/** Sends a request. `place`: where its flag for streams stands. */
function send(url: string, dialect: DialectName, stream: boolean, place: string, text: string): Promise<Response> {
  const form = FORMS[dialect]
  const body = form.body([SYSTEM, human(text)])
  return fetch(url + form.path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...form.headers('sk-1') },
    body: JSON.stringify(place === 'first' ? { stream, ...body } : { ...body, stream }),
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

  it('passes where there is no limit of a scope of time, and where a limit is only for models', async () => {
    for (const budget of [{ max_iterations: 1 }, { day: { per: 'model', max_iterations: 1 } }]) {
      const { url, model } = await start({ budget })
      for (let at = 0; at < 3; at++) expect((await send(url, 'chat', false, 'last', LONG)).status).toBe(200)
      expect(model.requests).toHaveLength(3)
    }
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
