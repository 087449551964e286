/** The tests that every dialect must pass. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../src/core/terminal.ts'
import type { AnswerChange, Dialect, DialectRequest, ErrorKind } from '../../src/dialect/dialect.ts'
import { applyEdits, type Edit } from '../../src/json/edit.ts'
import { routeOf, upstreamOf } from '../../src/proxy/door/route.ts'
import { createFrameReader } from '../../src/sse/frames.ts'
import type { Answer } from '../support/provider.ts'

/** A dialect under test, with a request and responses of its API. */
export interface DialectUnderTest {
  readonly dialect: Dialect
  readonly path: string
  /** A request (JSON text) to the model `m` that offers a tool and ends with words of a user. */
  readonly request: string
  readonly whole: (answer: Answer) => object
  /** The frames of a streamed response. Unset if the API has no streams. */
  readonly frames?: (answer: Answer) => readonly string[]
  /** An answer with three calls, and all else that a response of this API may hold. */
  readonly calling: Answer
}

const TERMINAL = terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', true)
const GOVERNOR = `,"governor":${JSON.stringify(TERMINAL)}`
/** Members that no dialect knows, with numbers that `JSON.parse` would change. */
const UNKNOWN = '"seed" : 9007199254740993, "t":1.0,'
const ERRORS: readonly ErrorKind[] = [
  'invalid_request',
  'unauthorized',
  'forbidden',
  'not_found',
  'timeout',
  'overloaded',
  'provider_down',
  'no_response',
]

const framesOf = (pieces: readonly Buffer[]) => {
  const reader = createFrameReader()
  return [...pieces.flatMap((piece) => reader.push(piece)), ...reader.end()]
}

/** Declares the tests of a dialect. `name`: of its API. */
export function dialectContract(name: string, tested: DialectUnderTest): void {
  const { dialect, path, request, whole, frames, calling } = tested
  const withUnknown = (value: string) => value.replace('{', `{ ${UNKNOWN}`)
  const bodyOf = (answer: Answer) => `${withUnknown(JSON.stringify(whole(answer)))}\n`
  const read = (body: string) => dialect.read({ path, body: Buffer.from(body) })
  const written = (body: string, change: Partial<AnswerChange> = {}) => {
    const all = { terminal: TERMINAL, dropCalls: true, earlier: [], ...change }
    return dialect.writeAnswer(Buffer.from(body), all).toString()
  }

  describe(`the dialect of ${name}`, () => {
    it('claims its path, and finds the model of a request without reading the rest', () => {
      expect(dialect.claims(path.split('/').slice(1))).toBeGreaterThan(0)
      expect(dialect.modelOf({ path, body: Buffer.from(request) })).toBe('m')
      expect(read(request)?.conversation).toMatchObject({ model: 'm', streams: false, offersTools: true })
    })

    it('knows the name of an upstream before its path', () => {
      const { api } = dialect
      const upstream = upstreamOf(api.upstream.name, { url: api.upstream.url, headers: {}, strip_name: false })
      const services = { upstreams: new Map([[upstream.name, upstream]]), dialects: [dialect] }
      const nameIn = (target: string) => routeOf(services, { method: 'POST', target, headers: [] }).unknownName
      expect([path, `/${upstream.name}${path}`, `/nobody${path}`].map(nameIn)).toEqual([undefined, undefined, 'nobody'])
    })

    it('keeps every byte of a request beside an edit', () => {
      const body = withUnknown(request)
      const changes: readonly ((asked: DialectRequest) => readonly Edit[])[] = [
        (it) => it.notice('A notice.', 'tool_result') ?? [],
        (it) => it.announce('A budget.'),
      ]
      for (const change of changes) {
        const found = read(body)
        const made = found ? change(found) : []
        const edited = applyEdits(Buffer.from(body), made).toString()
        expect(() => JSON.parse(edited)).not.toThrow()
        expect(made.reduce((rest, { text }) => rest.replace(text, ''), edited)).toBe(body)
      }
    })

    it('asks for no tools in a request whose tools are banned', () => {
      const edits = read(withUnknown(request))?.banTools('no_tools') ?? []
      const edited = applyEdits(Buffer.from(withUnknown(request)), edits).toString()
      expect(read(edited)?.conversation).toMatchObject({ model: 'm', offersTools: false })
      expect(edited).toContain(UNKNOWN)
    })

    it('keeps every byte of a whole response without calls, which gets the terminal state', () => {
      const body = bodyOf({ text: 'It is 42.' })
      expect(written(body)).toContain(GOVERNOR)
      expect(written(body).replace(GOVERNOR, '')).toBe(body)
    })

    it('keeps every byte of a whole response with calls if the agent ends its run itself', () => {
      const body = bodyOf(calling)
      expect(written(body, { dropCalls: false })).toContain(GOVERNOR)
      expect(written(body, { dropCalls: false }).replace(GOVERNOR, '')).toBe(body)
    })

    it('reads a whole response, and leaves its text without its calls', () => {
      const before = dialect.readAnswer(Buffer.from(bodyOf(calling)))
      expect(before).toMatchObject({ text: calling.text, end: 'complete' })
      expect(before?.calls).toHaveLength(3)
      const after = dialect.readAnswer(Buffer.from(written(bodyOf(calling))))
      expect(after).toMatchObject({ text: calling.text, calls: [], end: 'complete' })
    })

    it('replaces the text of a whole response', () => {
      const after = dialect.readAnswer(Buffer.from(written(bodyOf(calling), { text: 'Enough.' })))
      expect(after).toMatchObject({ text: 'Enough.', calls: [], end: 'complete' })
    })

    it('takes a body of another kind for no response', () => {
      for (const body of ['[]', 'no JSON', '{"error":{"message":"no"}}'])
        expect(dialect.readAnswer(Buffer.from(body))?.text ?? '').toBe('')
    })

    it('writes a reply of Governor that reads as any other response', () => {
      const answer = { text: 'It was 42. 🎉', model: 'm', terminal: TERMINAL }
      const reply = dialect.reply(answer, false, 'x1', 1_700_000_000_000)
      expect(reply.contentType).toBe('application/json')
      expect(dialect.readAnswer(reply.body)).toMatchObject({ text: answer.text, calls: [], end: 'complete' })
      expect(JSON.parse(reply.body.toString()).governor).toEqual(TERMINAL)
    })

    it.each(ERRORS)('writes JSON for the error %s', (kind) => {
      const body = dialect.api.errorBody(kind, 'A "reason".', 'a_code', 503)
      expect(body).toContain('A \\"reason\\".')
      expect(() => JSON.parse(body)).not.toThrow()
    })
  })

  if (frames) streamContract(name, { ...tested, frames })
}

function streamContract(name: string, tested: Required<DialectUnderTest>): void {
  const { dialect, whole, frames, calling } = tested
  const streamed = Buffer.from(frames(calling).join(''))
  const textIn = (bytes: Buffer) => framesOf([bytes]).map(dialect.openText()).join('')

  describe(`the dialect of ${name}, streamed`, () => {
    it('keeps the provider’s bytes if no call is blocked, however they are cut and wherever they end', () => {
      fc.assert(
        fc.property(fc.array(fc.nat(streamed.length), { maxLength: 5 }), fc.nat(streamed.length), (places, end) => {
          const bytes = streamed.subarray(0, end)
          const cuts = places.filter((place) => place < end).toSorted((a, b) => a - b)
          const pieces = [0, ...cuts].map((from, at) => bytes.subarray(from, cuts[at] ?? end))
          const filter = dialect.openFilter()
          const shown = framesOf(pieces).flatMap((frame) => filter.push(frame))
          filter.endResponse()
          expect(Buffer.concat([...shown, ...filter.release(new Set())])).toEqual(bytes)
        }),
      )
    })

    it('gives the calls and the text of a stream as those of the whole response', () => {
      const filter = dialect.openFilter()
      for (const frame of framesOf([streamed])) filter.push(frame)
      const { calls, text } = filter.endResponse() ?? {}
      const expected = dialect.readAnswer(Buffer.from(JSON.stringify(whole(calling))))?.buffered
      expect([calls, text]).toEqual([expected?.calls, calling.text])
    })

    it('ends a run with the text of a stream and without its calls, however its bytes are cut', () => {
      const through = (pieces: readonly Buffer[]) => {
        const stream = dialect.openStream(true, false)
        const shown = framesOf(pieces).flatMap((frame) => stream.push(frame))
        expect(stream.endResponse()).toBe('answered')
        const ended = stream.finish((hasAnswer) => ({ ...TERMINAL, has_final_answer: hasAnswer }), undefined)
        expect(stream.text).toBe(calling.text)
        return Buffer.concat([...shown, ...ended])
      }
      const all = through([streamed])
      expect(textIn(all)).toBe(calling.text)
      for (const { name: tool } of calling.calls ?? []) expect(all.includes(`"${tool}"`)).toBe(false)
      fc.assert(
        fc.property(fc.nat(streamed.length), (cut) => {
          expect(through([streamed.subarray(0, cut), streamed.subarray(cut)])).toEqual(all)
        }),
      )
    })

    it.each(['\r\n', '\r', '\n'])('ends each line that it adds as the provider ends its own: %j', (lineEnd) => {
      // The last event of some streams lacks its line end.
      const events = (answer: Answer) =>
        framesOf([Buffer.from(frames(answer).join('').trimEnd().replaceAll(/\r?\n/g, lineEnd))])
      const { text: _text, ...silent } = calling
      for (const answer of [calling, silent, { text: 'It is 42.' }]) {
        const all = events(answer)
        for (let count = 1; count <= all.length; count++) {
          const stream = dialect.openStream(true, false, true)
          const shown = all.slice(0, count).flatMap((frame) => stream.push(frame))
          stream.endResponse()
          for (const frame of events({ text: 'And more.' })) shown.push(...stream.push(frame))
          stream.endResponse()
          const ended = stream.finish(
            (hasAnswer) => ({ ...TERMINAL, has_final_answer: hasAnswer }),
            'Enough.',
            'A line.',
          )
          const lines = Buffer.concat([...shown, ...ended])
            .toString()
            .split(lineEnd)
          expect(lines.filter((line) => /[\r\n]/.test(line))).toEqual([])
        }
      }
    })

    it('writes a streamed reply of Governor with its text', () => {
      const answer = { text: 'It was 42. 🎉', model: 'm', terminal: TERMINAL }
      const reply = dialect.reply(answer, true, 'x1', 1_700_000_000_000, true)
      expect(reply.contentType).toContain('text/event-stream')
      expect(textIn(reply.body)).toBe(answer.text)
    })
  })
}
