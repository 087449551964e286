import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { sight } from '../../src/core/sighting.ts'
import { messages } from '../../src/dialect/messages.ts'
import { createRecall, type Recall } from '../../src/proxy/recall.ts'
import type { Soon } from '../../src/store/store.ts'
import { registry } from '../core/transcript.ts'

const MANY = 4_000_000
const CACHED = { cache_control: { type: 'ephemeral' } }

interface Block {
  readonly type: string
  readonly [field: string]: unknown
}
interface Message {
  readonly role: string
  readonly content: readonly Block[]
}

/** What is there without a turn of anybody else's in between. */
function atOnce<T>(value: Soon<T>): T {
  if (value instanceof Promise) throw new Error('read in turns')
  return value
}

/** Begins to read; the function that it returns reads to the end. */
function beginWith(recall: Recall, body: Buffer) {
  const recollection = recall.begin('me', body.length)
  const request = messages.read(body, recollection.recall)
  if (!request) throw new Error('not a Messages request')
  return () => {
    const { list, conversation } = request
    const { reading, fingerprint } = atOnce(recollection.read(request))
    const sighting = sight(reading, conversation, fingerprint, registry)
    return { items: list.items, sighting: { ...sighting, speaks: sighting.speaks() } }
  }
}

function readWith(recall: Recall, body: Buffer) {
  return beginWith(recall, body)()
}

const text = (value: string): Block => ({ type: 'text', text: value })
const said = (role: string, ...content: readonly Block[]): Message => ({ role, content })
const step = (id: string, size = 2): Message[] => [
  said('assistant', text('Working.'), { type: 'tool_use', id, name: 'search', input: { q: 'a' } }),
  said('user', { type: 'tool_result', tool_use_id: id, content: 'x'.repeat(size) }),
]
const TASK = said('user', text('<system-reminder>Mind.</system-reminder>'), text('Fix the bug.'))

/** How clients mark what is to be cached: the last block of so many of the newest messages, from request to request others. */
function marked(history: readonly Message[], newest: number): Message[] {
  return history.map(({ role, content }, at) => ({
    role,
    content: content.map((block, index) =>
      at >= history.length - newest && index === content.length - 1 ? { ...block, ...CACHED } : block,
    ),
  }))
}

function bodyOf(history: readonly Message[], newest: number, system: unknown = 'You are an agent.'): Buffer {
  const tools = [{ name: 'search', input_schema: {} }]
  return Buffer.from(JSON.stringify({ model: 'claude', messages: marked(history, newest), system, tools }))
}

describe('a Messages conversation whose cache marks move', () => {
  it.each([1, 2, 3])('is read but for its end, with the last %s messages marked', (newest) => {
    const recall = createRecall(registry, MANY, 0)
    let history = [TASK, ...Array.from({ length: 30 }, (_, at) => step(`a${at}`)).flat()]
    let before = readWith(recall, bodyOf(history, newest)).items
    for (let at = 0; at < 20; at++) {
      history = [...history, ...step(`b${at}`)]
      const { items } = readWith(recall, bodyOf(history, newest))
      const taken = items.filter((item, index) => item === before[index])
      expect(items.length - taken.length).toBeLessThan(newest === 1 ? 5 : 14)
      before = items
    }
  })

  it('is read as if it had not gone by, whatever its client does to it between two requests', () => {
    const change = fc.record({
      kind: fc.constantFrom('append', 'append', 'append', 'cut', 'drop', 'same'),
      at: fc.nat(),
      newest: fc.nat({ max: 4 }),
      system: fc.constantFrom<unknown>(
        'You are an agent.',
        'You write titles.',
        [text('x-anthropic-billing-header: cc_version=1;'), text('You are an agent.')],
        [text('x-anthropic-billing-header: cc_version=2;'), { ...text('You are an agent.'), ...CACHED }],
        undefined,
      ),
    })
    fc.assert(
      fc.property(fc.array(change, { maxLength: 12 }), (changes) => {
        const recall = createRecall(registry, MANY, 0, 64)
        let history = [TASK, ...step('a'), ...step('b')]
        for (const { kind, at, newest, system } of changes) {
          if (kind === 'append') history = [...history, ...step(`c${at}`), ...(at % 5 === 0 ? [TASK] : [])]
          if (kind === 'cut') history = history.slice(0, at % (history.length + 1))
          if (kind === 'drop') history = history.toSpliced(at % (history.length + 1), 1)
          const body = bodyOf(history, newest, system)
          expect(readWith(recall, body)).toEqual(readWith(createRecall(registry, MANY, 0), body))
        }
      }),
      { numRuns: 100 },
    )
  })

  it('is read as if it had not gone by, where another request changes its system text in the middle', () => {
    const system = fc.constantFrom<unknown>('You are an agent.', 'You write titles.', undefined)
    const change = fc.record({ count: fc.nat({ max: 3 }), system })
    fc.assert(
      fc.property(fc.array(fc.tuple(change, change), { maxLength: 6 }), (pairs) => {
        const recall = createRecall(registry, MANY, 0, 64)
        const bodyFor = ({ count, system: said }: { count: number; system: unknown }) => {
          const steps = Array.from({ length: count }, (_, at) => step(`a${at}`)).flat()
          return bodyOf([TASK, ...step('a'), ...steps], 0, said)
        }
        for (const [one, other] of pairs) {
          const end = beginWith(recall, bodyFor(one))
          readWith(recall, bodyFor(other))
          expect(end()).toEqual(readWith(createRecall(registry, MANY, 0), bodyFor(one)))
        }
      }),
      { numRuns: 100 },
    )
  })
})
