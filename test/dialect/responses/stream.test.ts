import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../../src/core/terminal.ts'
import { responses } from '../../../src/dialect/responses/index.ts'
import { createFrameReader, dataOf } from '../../../src/sse/frames.ts'
import type { Answer } from '../../support/provider.ts'
import { eventTexts, type Item, responseEvents, responseObject } from '../../support/responses.ts'

const terminal = (answered: boolean, truncated = false) =>
  terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', answered, truncated)
const FALLBACK = '(Reached max iterations: 3)'
const request = { model: 'm', messages: [] }
const search = { name: 'search', arguments: { query: 'it' } }

const eventsOf = (answer: Answer, number = 1): Item[] => responseEvents(responseObject(request, answer, number))
const textOf = (events: readonly Item[]) => eventTexts(events).join('')

interface Event {
  readonly type: string
  readonly sequence_number: number
  readonly output_index?: number
  readonly delta?: string
  readonly item?: Item
  readonly response?: Item
}

/** Returns what a client reads, and checks that numbers go up by one and that items begin in order and end. */
function received(bytes: Buffer) {
  const reader = createFrameReader()
  const frames = [...reader.push(bytes), ...reader.end()]
  const events = frames
    .flatMap((frame) => dataOf(frame) ?? [])
    .filter((data) => data !== '[DONE]')
    .map((data) => JSON.parse(data) as Event)
  expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, at) => at))
  const added = events.filter(({ type }) => type === 'response.output_item.added')
  const done = events.filter(({ type }) => type === 'response.output_item.done')
  expect(added.map((event) => event.output_index)).toEqual(added.map((_, at) => at))
  expect(done.map((event) => event.output_index).sort()).toEqual(added.map((event) => event.output_index))
  const last = events.at(-1)
  return {
    events,
    types: events.map(({ type }) => type),
    text: events.map(({ type, delta }) => (type === 'response.output_text.delta' ? delta : '')).join(''),
    items: done.map(({ item }) => item),
    last,
    response: last?.response ?? {},
  }
}

/** Feeds one stream per attempt, as the proxy does: none after an answer or an error, and the fallback after the last. */
function run(tries: readonly string[], { dropCalls = true, cut = 1e9 } = {}) {
  const stream = responses.openStream(dropCalls, false)
  let end: ReturnType<typeof stream.endResponse> = 'silent'
  const out: Buffer[] = []
  for (const text of tries) {
    const reader = createFrameReader()
    const bytes = Buffer.from(text)
    const pieces = [bytes.subarray(0, cut), bytes.subarray(cut)]
    for (const frame of [...pieces.flatMap((piece) => reader.push(piece)), ...reader.end()])
      out.push(...stream.push(frame))
    end = stream.endResponse()
    if (end !== 'silent') break
  }
  if (end === 'broken') out.push(...stream.abandon())
  else out.push(...stream.finish(terminal, end === 'answered' || !dropCalls ? undefined : FALLBACK))
  const raw = Buffer.concat(out)
  return { raw: raw.toString('utf8'), kept: stream.text, end }
}
const read = (...tries: readonly string[]) => {
  const { raw, kept } = run(tries)
  return { ...received(Buffer.from(raw)), raw, kept }
}

describe('a Responses stream that ends a run', () => {
  it('a stream changes only in the object of its last event', () => {
    const events = eventTexts(eventsOf({ reasoning: 'x', text: 'It is 42. 🎉' }))
    const { raw, kept } = run([events.join('')])
    const after = raw.split(/(?<=\n\n)/)
    expect(after.slice(0, -1)).toEqual(events.slice(0, -1))
    const governor = `,"governor":${JSON.stringify(terminal(true))}}}\n\n`
    expect(after.at(-1)).toBe(events.at(-1)?.replace(/\}\}\n\n$/, () => governor))
    expect(kept).toBe('It is 42. 🎉')
  })

  it('a stream shows text at once and holds its end', () => {
    const stream = responses.openStream(true, false)
    const frames = eventTexts(eventsOf({ text: 'Hi there' })).map((text) => ({ raw: Buffer.from(text) }))
    const shown = frames.map((frame) => Buffer.concat(stream.push(frame)).toString())
    // The first text shows the message, with all events before it.
    expect(shown[4]).toBe(
      frames
        .slice(2, 5)
        .map(({ raw }) => raw.toString())
        .join(''),
    )
    expect(shown.at(-1)).toBe('')
    expect(shown.join('')).toBe(
      frames
        .slice(0, -1)
        .map(({ raw }) => raw.toString())
        .join(''),
    )
  })

  it('a stream loses its calls, and its indexes and sequence numbers have no gaps', () => {
    const events = eventsOf({ reasoning: 'x', calls: [search, search], text: undefined as never })
    const message = eventsOf({ text: 'It is 42.' }).slice(2, -1)
    const moved = message.map((event) => ({ ...event, output_index: 3 }))
    const all = [...events.slice(0, -1), ...moved, ...events.slice(-1)]
    const { raw, types, items, response, text } = read(textOf(all))
    expect(raw).not.toContain('function_call')
    expect(items.map((item) => item?.['type'])).toEqual(['reasoning', 'message'])
    expect(types.at(-1)).toBe('response.completed')
    expect(response).toMatchObject({ status: 'completed', output: items, governor: terminal(true) })
    expect(text).toBe('It is 42.')
  })

  it('a stream that its provider cut off is completed, and its terminal state says that it was cut off', () => {
    for (const calls of [[], [search]]) {
      const { types, response, raw } = read(textOf(eventsOf({ text: 'It is', calls, finish: 'incomplete' })))
      expect(types.at(-1)).toBe('response.completed')
      expect(response).toMatchObject({
        status: 'completed',
        incomplete_details: null,
        governor: { has_final_answer: true, truncated: true },
      })
      expect(raw).not.toContain('function_call')
    }
  })

  it('a second response continues the stream of the first, with the usage of both', () => {
    const first = textOf(eventsOf({ reasoning: 'x', calls: [search] }, 1))
    const second = textOf(eventsOf({ text: 'It is 42.' }, 2))
    const { types, items, response, text } = read(first, second)
    expect(types.filter((type) => type === 'response.created')).toHaveLength(1)
    expect(items.map((item) => item?.['id'])).toEqual(['rs_1', 'msg_2'])
    // Clients refuse another id at the end than at the beginning.
    expect(response).toMatchObject({ id: 'resp_1', output: items, usage: { total_tokens: 220 } })
    expect([text, response['governor']]).toEqual(['It is 42.', terminal(true)])
  })

  it('a stream holds text that is not an answer, and gives the fallback text instead', () => {
    const markup = textOf(eventsOf({ text: '<tool_call> {"name": "f"} </tool_call>' }))
    const { raw, text, items, response, kept } = read(markup, markup)
    expect(raw).not.toContain('tool_call>')
    expect([text, kept]).toEqual([FALLBACK, FALLBACK])
    expect(response).toMatchObject({ output: items, status: 'completed', governor: terminal(false) })
  })

  it('reasoning that is written as text is shown together with the answer after it', () => {
    const text = '<think> Let me see. </think> It is 42.'
    expect(read(textOf(eventsOf({ text }))).text).toBe(text)
  })

  it('a stream keeps its end if the provider fails or only closes it', () => {
    const failed = {
      type: 'response.failed',
      response: { id: 'resp_1', status: 'failed', error: { code: 'x' } },
    }
    const begun = eventsOf({ text: 'It is 42.' }).slice(0, 5)
    for (const last of [failed, { type: 'error', message: 'x' }]) {
      for (const before of [begun, begun.slice(0, 4), begun.slice(0, 2), []]) {
        for (const dropCalls of [true, false]) {
          const events = textOf([...before, last])
          expect(run([events], { dropCalls })).toMatchObject({ raw: events, end: 'broken' })
        }
      }
    }
    expect(run([textOf(begun)])).toMatchObject({ raw: textOf(begun), end: 'broken' })
    expect(run([''])).toMatchObject({ raw: '', end: 'broken' })
  })

  it('text that a provider sends only at the end is shown', () => {
    const whole = responseObject(request, { text: 'It is 42.' }, 1)
    const atEnd = read(textOf([{ type: 'response.completed', response: whole }]))
    expect([atEnd.text, atEnd.response['governor']]).toEqual(['It is 42.', terminal(true)])
    const events = eventsOf({ text: 'It is 42.' })
    const undelayed = events.filter(({ type }) => !/delta|text\.done|part/.test(String(type)))
    expect(read(textOf(undelayed)).response).toMatchObject({ governor: terminal(true) })
  })

  it('a stream keeps comments, and the end mark of providers that send one', () => {
    const { raw } = run([`: ping\n\n${textOf(eventsOf({ text: 'Hi.' }))}data: [DONE]\n\n`])
    expect(raw).toMatch(/^: ping\n\n/)
    expect(raw).toMatch(/data: \[DONE\]\n\n$/)
  })

  it('a stream keeps its calls and its end if the agent ends its run itself', () => {
    for (const finish of [undefined, 'incomplete', 'failed']) {
      const events = eventTexts(eventsOf({ text: 'Hm.', calls: [search], ...(finish ? { finish } : {}) }))
      const { raw } = run([events.join('')], { dropCalls: false })
      const governor = JSON.stringify(terminal(true, finish === 'incomplete'))
      const last = finish === 'failed' ? '' : `,"governor":${governor}`
      expect(raw).toBe(events.join('').replace(/\}\}\n\n$/, () => `${last}}}\n\n`))
    }
  })

  it('a stream is the same however its bytes are cut', () => {
    const answers = fc.record(
      {
        text: fc.constantFrom('It is 42. ä🎉', '<think> x </think>', '', '<tool_call>'),
        reasoning: fc.constant('x'),
        calls: fc.constantFrom([search], [search, search]),
        finish: fc.constantFrom('incomplete', 'failed'),
      },
      { requiredKeys: [] },
    )
    fc.assert(
      fc.property(fc.array(answers, { minLength: 1, maxLength: 2 }), fc.nat(3_000), (all, cut) => {
        const tries = all.map((answer, at) => textOf(eventsOf(answer, at + 1)))
        const { raw, kept, end } = run(tries)
        expect(run(tries, { cut })).toMatchObject({ raw, kept, end })
        expect(raw.includes('response.failed')).toBe(end === 'broken')
        if (end === 'broken') return
        const { types, text, items, response } = received(Buffer.from(raw))
        expect(types.filter((type) => /completed|incomplete|failed/.test(type))).toHaveLength(1)
        expect([response['output'], text]).toEqual([items, kept])
        expect(raw).not.toContain('function_call')
      }),
      { numRuns: 300 },
    )
  })
})

describe('a Responses stream that its provider changes on the way', () => {
  const through = (events: readonly object[], { dropCalls = true, footer = '', isCut = false } = {}) => {
    const stream = responses.openStream(dropCalls, false, footer !== '')
    const reader = createFrameReader()
    const frames = [...reader.push(Buffer.from(textOf(events as Item[]))), ...reader.end()]
    const shown = frames.flatMap((frame) => stream.push(frame))
    stream.endResponse(isCut)
    const ended = stream.finish(terminal, undefined, footer || undefined)
    return received(Buffer.concat([...shown, ...ended]))
  }

  it('has the text of a response whose end is missing once', () => {
    const { text, items, response } = through(eventsOf({ text: 'It is 42.' }).slice(0, -1), { isCut: true })
    expect([text, items.length]).toEqual(['It is 42.', 1])
    expect(response).toMatchObject({ status: 'completed', output: items, governor: terminal(true) })
  })

  it('has the footer in the part of the message that is its last text', () => {
    const events = eventsOf({ text: 'It is 42.' }).map((event) =>
      'content_index' in event ? { ...event, content_index: 1 } : event,
    )
    const { events: sent } = through(events, { footer: '(stopped)' })
    const deltas = sent.filter(({ type }) => type === 'response.output_text.delta')
    expect(deltas.at(-1)).toMatchObject({ delta: expect.stringContaining('(stopped)'), content_index: 1 })
  })

  it.each([true, false])(
    'keeps its id and counts its events where its end does neither, if calls are removed: %s',
    (dropCalls) => {
      const events = eventsOf({ text: 'It is 42.' })
      const last = events.at(-1) as Item & { response: Item }
      const id = events[0]?.['response'] as Item
      for (const end of [
        { ...last, sequence_number: 99 },
        { ...last, response: { ...last.response, id: 'resp_other' } },
      ]) {
        const { response } = through([...events.slice(0, -1), end], { dropCalls })
        expect(response['id']).toBe(id['id'])
        expect(response['governor']).toEqual(terminal(true))
      }
    },
  )
})
