/** A request whose beginning is known is read from there on, and says the same as one that is read as a whole. */
import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { BLOCK, hashBody } from '../../src/core/hash.ts'
import { beginningsOf, factsOf, promptOf } from '../../src/core/session/request-facts.ts'
import { chat } from '../../src/dialect/chat/index.ts'
import { gemini } from '../../src/dialect/gemini/index.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'
import {
  createKnownPrefixes,
  type KnownPrefixes,
  longestKnown,
  readInTurns,
} from '../../src/proxy/session/read-transcript.ts'
import { registry } from '../core/transcript.ts'

const DIALECTS = { chat, gemini, messages, responses }
type Name = keyof typeof DIALECTS

/** All that is read of a request, or the error. `prefixes`: what is known of others. */
async function read(name: Name, body: Buffer, prefixes: KnownPrefixes, tenant = 'a'): Promise<unknown> {
  const hashes = hashBody(body, `${name} ${tenant}`)
  const known = longestKnown(prefixes, hashes, body)
  try {
    const request = DIALECTS[name].read({ path: '', body, known })
    if (!request) return undefined
    const { conversation, index } = request
    const state = await readInTurns(request, registry, { hashes, known, prefixes })
    const facts = factsOf(state, conversation, hashes.whole, registry, body.length)
    const said = Array.from({ length: conversation.length }, (_, at) => [
      conversation.role(at),
      conversation.texts(at),
      conversation.calls(at),
      conversation.results(at),
    ])
    const { fields, list, items } = index ?? {}
    const prompt = promptOf(facts, facts.assistantHashes.at(-1))
    const more = [prompt, beginningsOf(facts, conversation), request.demands(), request.notice('n', 'user')]
    // The ids in a message are kept beside it once they are read, like its hash; facts have them in lists.
    const withoutRead = (key: string, value: unknown) =>
      key === 'callIds' && !(Array.isArray(value) && Array.isArray(value[0])) ? undefined : value
    return JSON.stringify([fields, list, items, state, facts, said, more, conversation.systemText()], withoutRead)
  } catch (error) {
    return String(error)
  }
}

/** A text that is long enough for a few messages to fill a block. */
const text = fc
  .tuple(fc.constantFrom('go on', 'a "quote" \\', 'ü😀', '{"a":[', '\n'), fc.integer({ min: 1, max: 900 }))
  .map(([piece, count]) => piece.repeat(count))
const id = fc.integer({ min: 1, max: 5 }).map((number) => `call_${number}`)

const call = (callId: string) => ({ id: callId, function: { name: 'look', arguments: '{"at":"a"}' } })
const MESSAGES: Record<Name, fc.Arbitrary<object>> = {
  chat: fc.oneof(
    fc.record({ role: fc.constantFrom('user', 'assistant', 'system', 'developer', '?'), content: text }),
    fc.record({ role: fc.constant('user'), content: text.map((one) => [{ type: 'text', text: one }]) }),
    fc.record({ role: fc.constant('assistant'), content: text, tool_calls: fc.array(id.map(call)) }),
    fc.record({ role: fc.constant('tool'), tool_call_id: id, content: text }),
  ),
  gemini: fc.oneof(
    fc.record({ role: fc.constantFrom('user', 'model'), parts: text.map((one) => [{ text: one }]) }),
    fc.record({
      role: fc.constant('model'),
      parts: fc.tuple(id, text).map(([one, at]) => [{ functionCall: { id: one, name: 'look', args: { at } } }]),
    }),
    fc.record({
      role: fc.constant('user'),
      parts: fc.tuple(id, text).map(([one, at]) => [{ functionResponse: { id: one, name: 'look', response: { at } } }]),
    }),
  ),
  messages: fc.oneof(
    fc.record({ role: fc.constantFrom('user', 'assistant', 'system'), content: text }),
    fc.record({
      role: fc.constant('assistant'),
      content: fc.tuple(id, text).map(([one, said]) => [
        { type: 'text', text: said },
        { type: 'tool_use', id: one, name: 'look', input: { at: said } },
      ]),
    }),
    fc.record({
      role: fc.constant('user'),
      content: fc.tuple(id, text).map(([one, content]) => [{ type: 'tool_result', tool_use_id: one, content }]),
    }),
  ),
  responses: fc.oneof(
    fc.record({ role: fc.constantFrom('user', 'assistant', 'developer'), content: text }),
    fc.record({ type: fc.constant('reasoning'), id, encrypted_content: text }),
    fc.record({
      type: fc.constant('function_call'),
      call_id: id,
      name: fc.constant('look'),
      arguments: text,
    }),
    fc.record({ type: fc.constant('function_call_output'), call_id: id, output: text }),
    fc.record({ type: fc.constant('item_reference'), id }),
  ),
}
const LISTS: Record<Name, string> = { chat: 'messages', gemini: 'contents', messages: 'messages', responses: 'input' }

const KINDS = [
  ...['back', 'edit', 'fork', 'undo', 'repeat', 'key', 'system', 'before', 'after', 'escape', 'cut', 'null', 'text'],
  ...['spaces', 'end'],
] as const

/** What an agent sends next: more, less, other words at a place, another list after it, another key before it, a cut body, an earlier one again. */
const change = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ kind: fc.constant('grow' as const), by: fc.integer({ min: 1, max: 4 }) }),
  },
  fc.record({
    kind: fc.constantFrom(...KINDS),
    by: fc.integer({ min: 1, max: 9 }),
  }),
)

interface Story {
  /** How many messages the first request has. */
  readonly first: number
  readonly list: readonly object[]
  readonly changes: readonly { readonly kind: string; readonly by: number }[]
}

/** Fields with system text, of which the last one may count. */
const SYSTEMS: Record<Name, readonly string[]> = {
  chat: ['system'],
  gemini: ['systemInstruction', 'system_instruction'],
  messages: ['system'],
  responses: ['instructions'],
}

function systemOf(name: Name, by: number): string {
  const words = 's'.repeat(by)
  return JSON.stringify(name === 'gemini' ? { parts: [{ text: words }] } : words)
}

function bodiesOf(name: Name, { first, list, changes }: Story): Buffer[] {
  const key = LISTS[name]
  let length = first
  let before = '"model":"m",'
  let after = ',"tools":[{"name":"look"}]'
  let all = [...list]
  let again = ''
  let isEscaped = false
  return changes.map(({ kind, by }) => {
    if (kind === 'grow') length = Math.min(all.length, length + by)
    if (kind === 'back') length = Math.max(1, length - by)
    if (kind === 'edit') all = all.toSpliced(Math.max(0, length - by), 1, { role: 'user', content: 'other words' })
    // Another agent that had the same beginning, whose last message has the same place.
    if (kind === 'fork') all = all.toSpliced(length - 1, 1, { role: 'user', content: 'o'.repeat(by * 400) })
    if (kind === 'undo') all = [...list]
    if (kind === 'escape') isEscaped = !isEscaped
    // System text before the list, also under the same name as behind it.
    if (kind === 'before') before = `"model":"m","${SYSTEMS[name].at(-1)}":${systemOf(name, by)},`
    if (kind === 'key') before = `"model":"m","n":${by},`
    if (kind === 'system')
      after = SYSTEMS[name]
        .slice(by % 2)
        .map((field) => `,"${field}":${systemOf(name, by)}`)
        .join('')
    if (kind === 'after') after = `${after},"metadata":{"turn":${by}}`
    const value = JSON.stringify(all.slice(0, length), undefined, kind === 'spaces' ? 1 : 0)
    if (kind === 'repeat') again = `,"${key}":${JSON.stringify(all.slice(-Math.ceil(by / 3)))}`
    if (kind === 'null') again = `,"${key}":null`
    if (kind === 'back') again = ''
    if (kind === 'text') again = `,"${key}":"${'w'.repeat(by * 2_000)}"`
    const written = isEscaped ? `\\u00${key.charCodeAt(0).toString(16)}${key.slice(1)}` : key
    const space = kind === 'end' ? ' \n'.repeat(by) : ''
    const body = Buffer.from(`{${before}"${written}":${value}${again}${after}}${space}`)
    return kind === 'cut' ? body.subarray(0, -by * 1_000) : body
  })
}

/** Several of them may stand before all other messages, and are one system text then. */
const system = fc.record({ role: fc.constantFrom('system', 'developer'), content: text })

const story = (name: Name): fc.Arbitrary<Story> =>
  fc.record({
    first: fc.integer({ min: 1, max: 6 }),
    list: fc
      .tuple(fc.array(system, { maxLength: 4 }), fc.array(MESSAGES[name], { minLength: 8, maxLength: 24 }))
      .map((lists) => lists.flat()),
    changes: fc.array(change, { minLength: 2, maxLength: 9 }),
  })

describe('a request that begins as an earlier one did', () => {
  it.each(['chat', 'gemini', 'messages', 'responses'] as const)(
    'of %s says the same as if nothing were known of it',
    async (name) => {
      let known = 0
      await fc.assert(
        fc.asyncProperty(story(name), async (conversation) => {
          const prefixes = createKnownPrefixes()
          for (const body of bodiesOf(name, conversation)) {
            if (longestKnown(prefixes, hashBody(body, `${name} a`), body)) known++
            expect(await read(name, body, prefixes)).toEqual(await read(name, body, createKnownPrefixes()))
          }
        }),
        { numRuns: 120 },
      )
      expect(known).toBeGreaterThan(100)
    },
  )

  const turns = (count: number) =>
    Array.from({ length: count }, (_, at) => ({
      role: at % 2 ? 'assistant' : 'user',
      content: `${at} ${'x'.repeat(2_000)}`,
    }))
  const bodyOf = (count: number) => Buffer.from(JSON.stringify({ model: 'm', messages: turns(count) }))

  it('is decoded only from its last known place on', async () => {
    const prefixes = createKnownPrefixes()
    await read('chat', bodyOf(100), prefixes)
    const body = bodyOf(102)
    const hashes = hashBody(body, 'chat a')
    const known = longestKnown(prefixes, hashes, body)
    const request = chat.read({ path: '', body, known })
    if (!request) throw new Error('not a chat request')
    const decoded = vi.spyOn(request.conversation, 'texts')
    const state = await readInTurns(request, registry, { hashes, known, prefixes })
    expect(state.length).toBe(101)
    const places = decoded.mock.calls.map(([at]) => at)
    expect(Math.min(...places)).toBeGreaterThanOrEqual(100 - Math.ceil(BLOCK / 2_000))
  })

  it('is not known to another tenant, nor to another dialect', async () => {
    const prefixes = createKnownPrefixes()
    const body = bodyOf(20)
    await read('chat', body, prefixes, 'a')
    expect(longestKnown(prefixes, hashBody(body, 'chat a'), body)).toBeDefined()
    expect(longestKnown(prefixes, hashBody(body, 'chat b'), body)).toBeUndefined()
    expect(longestKnown(prefixes, hashBody(body, 'messages a'), body)).toBeUndefined()
  })

  it('leaves no text in memory', async () => {
    const prefixes = createKnownPrefixes()
    await read('chat', bodyOf(50), prefixes)
    expect(prefixes.size).toBe(1)
    expect(JSON.stringify([...prefixes.values()])).not.toContain('xx')
  })

  it('takes no more memory than its bound, however many different requests come', async () => {
    const prefixes = createKnownPrefixes()
    const message = { role: 'user', content: 'y' }
    for (let number = 0; number < 60; number++) {
      const list = Array.from({ length: 6_000 }, () => message)
      await read('chat', Buffer.from(JSON.stringify({ number, messages: list })), prefixes)
    }
    expect(prefixes.calculatedSize).toBeLessThanOrEqual(32 * 1_048_576)
    expect(prefixes.size).toBeLessThan(60)
  })
})
