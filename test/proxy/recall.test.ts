import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { sight } from '../../src/core/sighting.ts'
import { chat } from '../../src/dialect/chat.ts'
import type { Dialect } from '../../src/dialect/dialect.ts'
import { responses } from '../../src/dialect/responses.ts'
import { createRecall, type Recall } from '../../src/proxy/recall.ts'
import type { Soon } from '../../src/store/store.ts'
import {
  bodyOf,
  called,
  type Message,
  registry,
  result,
  said,
  steps,
  system,
  user,
} from '../core/transcript.ts'

const MANY = 1_000_000
const TASK = [system('You are an agent.'), user('Fix the bug.')]

/** What is there without a turn of anybody else's in between. */
function atOnce<T>(value: Soon<T>): T {
  if (value instanceof Promise) throw new Error('read in turns')
  return value
}

/** Begins to read; the function that it returns reads to the end. */
function beginWith(recall: Recall, body: Buffer, owner = 'me', dialect: Dialect = chat) {
  const recollection = recall.begin(owner, body.length)
  const request = dialect.read(body, recollection.recall)
  if (!request) throw new Error('not a request')
  return () => {
    const { reading, fingerprint } = atOnce(recollection.read(request))
    const sighting = sight(reading, request.conversation, fingerprint, registry)
    return { items: request.list.items, sighting: { ...sighting, speaks: sighting.speaks() } }
  }
}

function readWith(...request: Parameters<typeof beginWith>) {
  return beginWith(...request)()
}

/** As if nothing had gone by before. */
const readAlone = (body: Buffer) => readWith(createRecall(registry, MANY, 0), body)

/** Segments so small that every conversation takes many. */
const createFine = (maxBytes = MANY) => createRecall(registry, maxBytes, 0, 64)

/** Tools that are long enough to be known again. */
const toolsOf = (name: string) => ({
  tools: [{ type: 'function', function: { name, description: '"{}[]'.repeat(250) } }],
})

const message = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(...steps('a', 3), ...steps('b', 2)) },
  fc.constantFrom<Message>(
    user('Next.'),
    user('Fix the bug.'),
    user('<system-reminder>Mind.</system-reminder>'),
    user([{ type: 'image_url', image_url: { url: 'data:' } }]),
    system('Note.'),
    said('Done.'),
    called(),
    called('x', 'y'),
    result('z', 'ä "quoted"\n'),
    { role: 'assistant', content: null, function_call: { name: 'search', arguments: '{}' } },
  ),
)

/** What a client does to its history between two requests. */
type Step<Item> =
  | { readonly kind: 'append'; readonly messages: readonly Item[] }
  | { readonly kind: 'cut' | 'drop' | 'change'; readonly at: number }
  | { readonly kind: 'same' }

function stepOf<Item>(item: fc.Arbitrary<Item>): fc.Arbitrary<Step<Item>> {
  return fc.oneof(
    {
      weight: 6,
      arbitrary: fc
        .array(item, { minLength: 1, maxLength: 12 })
        .map((messages) => ({ kind: 'append' as const, messages })),
    },
    fc.record({ kind: fc.constantFrom('cut' as const, 'drop' as const, 'change' as const), at: fc.nat() }),
    fc.constant({ kind: 'same' as const }),
  )
}

const step = stepOf(message)

/** Items of the Responses API, of which several may make one response. */
const item = fc.oneof(
  fc.constantFrom<object>(
    { role: 'user', content: 'Next.' },
    { role: 'developer', content: 'Note.' },
    { role: 'assistant', content: 'Done.' },
    { type: 'reasoning', id: 'rs', encrypted_content: 'x' },
    { type: 'compaction', encrypted_content: 'x' },
  ),
  fc
    .constantFrom('a', 'b', 'c')
    .map((id) => ({ type: 'function_call', call_id: id, name: 'f', arguments: '{}' })),
  fc
    .constantFrom('a', 'b', 'c')
    .map((id) => ({ type: 'function_call_output', call_id: id, output: 'ä "quoted"' })),
)

function changed<Item extends object>(history: readonly Item[], step: Step<Item>): readonly Item[] {
  switch (step.kind) {
    case 'append':
      return [...history, ...step.messages]
    case 'cut':
      return history.slice(0, step.at % (history.length + 1))
    case 'drop':
      return history.toSpliced(step.at % (history.length + 1), 1)
    case 'change':
      return history.map((one, at) => (at === step.at % history.length ? { ...one, cache: step.at } : one))
    case 'same':
      return history
  }
}

describe('a conversation that went by before', () => {
  it('is read as if it had not, whatever its client does to it between two requests', () => {
    const extra = fc.constantFrom(
      {},
      { stream: true },
      { temperature: 1, tools: [] },
      toolsOf('a'),
      toolsOf('b'),
    )
    fc.assert(
      fc.property(fc.array(fc.tuple(step, extra), { maxLength: 12 }), (all) => {
        const recall = createFine()
        let history: readonly Message[] = TASK
        for (const [one, fields] of all) {
          history = changed(history, one)
          const body = bodyOf(history, fields)
          expect(readWith(recall, body)).toEqual(readAlone(body))
        }
      }),
      { numRuns: 100 },
    )
  })

  it('is read as if it had not where a response has several parts, which may come or go', () => {
    const extra = fc.constantFrom(
      {},
      { stream: true },
      { instructions: 'Be good.' },
      { instructions: 'Be bad.' },
    )
    fc.assert(
      fc.property(fc.array(fc.tuple(stepOf(item), extra), { maxLength: 12 }), (all) => {
        const recall = createFine()
        let input: readonly object[] = [{ role: 'user', content: 'Fix the bug.' }]
        for (const [one, fields] of all) {
          input = changed(input, one)
          const body = Buffer.from(JSON.stringify({ model: 'm', input, ...fields }))
          const alone = readWith(createRecall(registry, MANY, 0), body, 'me', responses)
          expect(readWith(recall, body, 'me', responses)).toEqual(alone)
        }
      }),
      { numRuns: 200 },
    )
  })

  it('is read as if it had not, however the requests of several clients overlap, and whatever is forgotten', () => {
    const request = fc.record({
      client: fc.nat({ max: 3 }),
      step,
      extra: fc.constantFrom({}, { stream: true }, toolsOf('a'), toolsOf('b'), { metadata: toolsOf('a') }),
      // How many of the requests under way are read to their end before this one begins, and the first of them.
      ends: fc.nat({ max: 2 }),
      first: fc.nat(),
    })
    const sizes = fc.constantFrom(4_000, 12_000, MANY)
    fc.assert(
      fc.property(sizes, fc.array(request, { maxLength: 24 }), (maxBytes, requests) => {
        const recall = createFine(maxBytes)
        const histories: (readonly Message[])[] = Array.from({ length: 4 }, (_, client) =>
          // Those of two clients begin alike, and are found by the same checksum.
          [...TASK, ...steps(client < 2 ? 'a' : `c${client}`, 3)],
        )
        const underWay: { readonly body: Buffer; readonly end: ReturnType<typeof beginWith> }[] = []
        const end = (at: number) => {
          for (const { body, end } of underWay.splice(at % underWay.length, 1)) {
            const copy = Buffer.from(body)
            expect(end()).toEqual(readAlone(body))
            expect(body).toEqual(copy)
          }
        }
        for (const { client, step, extra, ends, first } of requests) {
          for (let at = 0; at < ends && underWay.length > 0; at++) end(first + at)
          const history = changed(histories[client] ?? [], step)
          histories[client] = history
          const body = bodyOf(history, extra)
          underWay.push({ body, end: beginWith(recall, body) })
        }
        while (underWay.length > 0) end(0)
      }),
      { numRuns: 150 },
    )
  })

  it('has one fingerprint for one body, and another for any other', () => {
    const recall = createRecall(registry, MANY, 0)
    const bodies = Array.from({ length: 40 }, (_, at) => bodyOf([...TASK, ...steps('a', at + 1)]))
    const others = bodies.map((body) => Buffer.from(body.toString().replace('"ok"', '"on"')))
    const models = bodies.map((body) => Buffer.from(body.toString().replace('gpt-4o', 'gpt-4i')))
    const tools = bodies.map((body) =>
      Buffer.from(body.toString().replace('"parameters":{}', '"parameters":[]')),
    )
    const more = Array.from({ length: 9 }, (_, at) =>
      bodyOf([...TASK, ...steps('a', 3)], { stop: at < 5, ...toolsOf(`tool${at}`) }),
    )
    const all = [...bodies, ...others, ...models, ...tools, ...more]
    const prints = all.map((body) => readWith(recall, body).sighting.fingerprint)
    expect(new Set(prints).size).toBe(all.length)
    expect(all.map((body) => readAlone(body).sighting.fingerprint)).toEqual(prints)
    const small = createRecall(registry, MANY)
    const smallPrints = all.map((body) => readWith(small, body).sighting.fingerprint)
    expect(new Set(smallPrints).size).toBe(all.length)
    expect(all.map((body) => readWith(small, body).sighting.fingerprint)).toEqual(smallPrints)
  })

  it('is not looked for among those of another owner', () => {
    const recall = createRecall(registry, MANY, 0)
    const body = bodyOf([...TASK, ...steps('a', 3)])
    const first = readWith(recall, body, 'me')
    expect(readWith(recall, Buffer.from(body), 'you').items[0]).not.toBe(first.items[0])
    expect(readWith(recall, Buffer.from(body), 'me').items[0]).toBe(first.items[0])
  })

  it('is taken over but for its end where a client changes the end each time', () => {
    const recall = createRecall(registry, MANY, 0)
    const marked = (count: number) => {
      const history = [...TASK, ...steps('a', count)]
      return bodyOf(history.map((one, at) => (at > history.length - 4 ? { ...one, cache: true } : one)))
    }
    readWith(recall, marked(20))
    const before = readWith(recall, marked(21))
    const { items } = readWith(recall, marked(22))
    const taken = items.filter((item, at) => item === before.items[at])
    expect(items.length - taken.length).toBeLessThan(14)
  })

  it('is forgotten where there is no room, and read again', () => {
    const recall = createFine(4_000)
    const bodies = Array.from({ length: 10 }, (_, at) => bodyOf([...TASK, ...steps(`run${at}-`, 3)]))
    const first = bodies.map((body) => readWith(recall, body).items)
    const again = bodies.map((body) => readWith(recall, body).items)
    expect(again.filter((items, at) => items[0] === first[at]?.[0])).toEqual([])
    expect(again).toEqual(first)
  })
})

describe('a body that is too small to be remembered', () => {
  it('is read like any other', () => {
    const recall = createRecall(registry, MANY)
    const body = bodyOf([...TASK, ...steps('a', 3)])
    const first = readWith(recall, body)
    const { items, sighting } = readAlone(body)
    expect(first).toEqual({ items, sighting: { ...sighting, fingerprint: first.sighting.fingerprint } })
    expect(readWith(recall, Buffer.from(body)).items[0]).not.toBe(first.items[0])
  })
})

describe('a body with two lists of messages', () => {
  it('is read by the last of them, which alone is remembered', () => {
    const recall = createRecall(registry, MANY, 0)
    const text = (messages: readonly Message[]) => JSON.stringify(messages)
    const twice = (messages: readonly Message[]) =>
      Buffer.from(`{"messages":${text([...TASK, ...steps('a', 2)])},"messages":${text(messages)}}`)
    for (const messages of [TASK, [...TASK, ...steps('b', 1)], [...TASK, ...steps('b', 9)], TASK]) {
      expect(readWith(recall, twice(messages))).toEqual(readAlone(twice(messages)))
    }
  })
})
