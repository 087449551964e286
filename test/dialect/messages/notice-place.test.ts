import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Channel } from '../../../src/core/decide.ts'
import { hashOf } from '../../../src/core/hash.ts'
import type { DialectRequest } from '../../../src/dialect/dialect.ts'
import { messages } from '../../../src/dialect/messages/index.ts'
import { responses } from '../../../src/dialect/responses/index.ts'
import { applyEdits } from '../../../src/json/edit.ts'

const NOTICE = '[BUDGET: 7/10]'
const CHANNELS: readonly Channel[] = ['auto', 'tool_result', 'system', 'user']
const MARK = { type: 'ephemeral' }

const inMessages = (body: object) =>
  messages.read({ path: '', body: Buffer.from(JSON.stringify(body)) }) as DialectRequest
const inResponses = (input: readonly object[], more = {}) =>
  responses.read({ path: '', body: Buffer.from(JSON.stringify({ store: false, input, ...more })) }) as DialectRequest

describe('no text stands beside results that a program of the provider reads', () => {
  const caller = { type: 'code_execution_20250825', tool_id: 'srv' }
  const use = (id: string, more = {}) => ({ type: 'tool_use', id, name: 'stock', input: {}, ...more })
  const result = (id: string) => ({ type: 'tool_result', tool_use_id: id, content: '{"stock":1}' })
  const run = { type: 'server_tool_use', id: 'srv', name: 'code_execution', input: {} }
  const ran = { type: 'code_execution_tool_result', tool_use_id: 'srv', content: [] }
  const answer = (...content: object[]) => ({ role: 'assistant', content })
  const user = (...content: object[]) => ({ role: 'user', content })
  const START = user({ type: 'text', text: 'Go.' })

  it.each<[string, boolean, object[]]>([
    ['a program made the call', false, [START, answer(run, use('a', { caller })), user(result('a'))]],
    [
      'a program made one of the calls',
      false,
      [START, answer(use('a', { caller }), use('b')), user(result('b'), result('a'))],
    ],
    ['a call of the provider waits beside one of the model', false, [START, answer(run, use('a')), user(result('a'))]],
    ['the provider paused', false, [START, answer(run)]],
    ['the model made the call', true, [START, answer(use('a', { caller: { type: 'direct' } })), user(result('a'))]],
    [
      'the program has ended',
      true,
      [START, answer(run, use('a', { caller })), user(result('a')), answer(ran, use('b')), user(result('b'))],
    ],
    ['the call of the provider has its result', true, [START, answer(run, ran, use('a')), user(result('a'))]],
  ])('in Messages, where %s: a notice has a place there: %s', (_, hasPlace, all) => {
    for (const channel of CHANNELS.filter((one) => one !== 'system'))
      expect(inMessages({ messages: all }).notice(NOTICE, channel) !== undefined).toBe(hasPlace)
  })

  const task = { role: 'user', content: 'Go.' }
  const program = { type: 'program', id: 'p', call_id: 'p', code: '', fingerprint: 'f' }
  const call = (id: string, by?: object) => ({
    type: 'function_call',
    call_id: id,
    name: 'stock',
    arguments: '{}',
    ...(by ? { caller: by } : {}),
  })
  const output = (id: string) => ({ type: 'function_call_output', call_id: id, output: '{"stock":1}' })
  const by = { type: 'program', caller_id: 'p' }

  it.each<[string, boolean, object[]]>([
    ['a program made the call', false, [task, program, call('a', by), output('a')]],
    [
      'a program made the first of two calls',
      false,
      [task, program, call('a', by), call('b'), output('a'), output('b')],
    ],
    [
      'a program made the second of two calls',
      false,
      [task, program, call('b'), call('a', by), output('a'), output('b')],
    ],
    [
      'reasoning stands between its calls',
      false,
      [task, program, call('a', by), { type: 'reasoning', id: 'r' }, call('b'), output('b'), output('a')],
    ],
    ['the model made the call', true, [task, call('a', { type: 'direct' }), output('a')]],
    [
      'the program has ended',
      true,
      [
        task,
        program,
        call('a', by),
        output('a'),
        { type: 'program_output', call_id: 'p', result: '' },
        call('b'),
        output('b'),
      ],
    ],
    ['a human speaks', true, [task, program, call('a', by), output('a'), task]],
  ])('in Responses, where %s: a notice has a place there: %s', (_, hasPlace, input) => {
    for (const channel of CHANNELS) expect(inResponses(input).notice(NOTICE, channel) !== undefined).toBe(hasPlace)
  })

  it('also where repeated calls are collapsed to their newest result', () => {
    const input = [task, call('a', by), output('a'), call('b', by), output('b')]
    const edits = inResponses(input).collapseRepeats()
    expect(edits.length).toBeGreaterThan(0)
    expect(edits.map(({ text }) => text).join('')).not.toContain('This call was made')
  })
})

/** A prompt cache by the rules of the provider: an entry at each marker; a read looks back 20 blocks. Tokens by size. */
function promptCache() {
  const cache = new Set<string>()
  return (body: Record<string, unknown>) => {
    const blocks = [JSON.stringify(body['tools'] ?? []), JSON.stringify(body['system'] ?? '')]
    const marks: number[] = []
    for (const { role, content } of body['messages'] as { role: string; content: string | object[] }[]) {
      const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content
      for (const { cache_control: mark, ...rest } of parts as { cache_control?: object }[]) {
        if (mark) marks.push(blocks.length)
        blocks.push(role + JSON.stringify(rest))
      }
    }
    if (body['cache_control']) marks.push(blocks.length - 1)
    expect(marks.length).toBeLessThanOrEqual(4)
    const sums: { hash: string; size: number }[] = []
    for (const block of blocks) {
      const { hash, size } = sums.at(-1) ?? { hash: '', size: 0 }
      sums.push({ hash: hashOf(hash + block), size: size + block.length / 4 })
    }
    let read = 0
    for (const mark of marks) {
      const found = sums.slice(Math.max(0, mark - 19), mark + 1).findLast(({ hash }) => cache.has(hash))
      read = Math.max(read, found?.size ?? 0)
    }
    for (const mark of marks) cache.add(sums[mark]?.hash ?? '')
    const all = sums.at(-1)?.size ?? 0
    const written = marks.length === 0 ? 0 : Math.max(0, (sums[Math.max(...marks)]?.size ?? 0) - read)
    return (all - read - written) * 3 + read * 0.3 + written * 3.75
  }
}

describe('a notice is never in a cached prefix', () => {
  const step = fc.record({
    calls: fc.integer({ min: 1, max: 4 }),
    size: fc.integer({ min: 400, max: 4_000 }),
    channel: fc.constantFrom<Channel | undefined>(undefined, 'auto', 'auto', 'user'),
    isText: fc.boolean(),
  })
  const steps = fc.array(step, { minLength: 8, maxLength: 30 })

  it.each([
    ['automatic', true],
    ['of marked blocks', false],
  ])('with caching %s: a run costs at most 5 %% more than without notices', (_, isAutomatic) => {
    fc.assert(
      fc.property(steps, fc.integer({ min: 0, max: 2 }), (all, marked) => {
        const [direct, through] = [promptCache(), promptCache()]
        const costs = { direct: 0, through: 0 }
        const history: { role: string; content: string | object[] }[] = [{ role: 'user', content: 'task '.repeat(900) }]
        for (const [at, { calls, size, channel, isText }] of all.entries()) {
          const sent = structuredClone(history)
          const last = sent.at(-1)
          if (!isAutomatic && last) {
            const content = typeof last.content === 'string' ? [{ type: 'text', text: last.content }] : last.content
            last.content = content.with(-1, { ...content.at(-1), cache_control: MARK })
          }
          const system = [{ type: 'text', text: 'sys '.repeat(300), ...(marked > 0 ? { cache_control: MARK } : {}) }]
          const tools = [{ name: 'read', input_schema: {}, ...(marked > 1 ? { cache_control: MARK } : {}) }]
          const body = { max_tokens: 9, ...(isAutomatic ? { cache_control: MARK } : {}), system, tools, messages: sent }
          const json = Buffer.from(JSON.stringify(body))
          const edits = (channel && inMessages(body).notice(NOTICE.repeat(8), channel)) ?? []
          const edited = JSON.parse(applyEdits(json, edits).toString())
          if (channel) expect(JSON.stringify(edited.messages.at(-1))).toContain(NOTICE)
          costs.direct += direct(body)
          costs.through += through(edited)
          if (isText)
            history.push({ role: 'assistant', content: 'So.' }, { role: 'user', content: `${at}`.repeat(size) })
          else {
            const ids = Array.from({ length: calls }, (_unused, call) => `${at}-${call}`)
            const uses = ids.map((id) => ({ type: 'tool_use', id, name: 'read', input: {} }))
            const results = ids.map((id) => ({ type: 'tool_result', tool_use_id: id, content: `${id}`.repeat(size) }))
            history.push({ role: 'assistant', content: uses }, { role: 'user', content: results })
          }
        }
        expect(costs.through).toBeLessThanOrEqual(costs.direct * 1.05)
      }),
      { numRuns: 20 },
    )
  })

  const oneMarker = (body: object, channel: Channel) => {
    const edits = inMessages(body).notice(NOTICE, channel) ?? []
    return JSON.parse(applyEdits(Buffer.from(JSON.stringify(body)), edits).toString())
  }

  it('as the marker of automatic caching goes to the last block of the client', () => {
    const own = { type: 'text', text: 'Go.', cache_control: MARK }
    const told = { type: 'text', text: NOTICE }
    const body = { cache_control: MARK, messages: [{ role: 'user', content: 'Go.' }] }
    expect(oneMarker(body, 'auto')).toEqual({ messages: [{ role: 'user', content: [own, told] }] })
    expect(oneMarker(body, 'user')).toEqual({
      messages: [
        { role: 'user', content: [own] },
        { role: 'user', content: NOTICE },
      ],
    })
  })

  it('and stays as it is without automatic caching', () => {
    const fields = { cache_control: null }
    const body = { ...fields, messages: [{ role: 'user', content: 'Go.' }] }
    expect(oneMarker(body, 'auto')).toEqual({ ...fields, messages: [{ role: 'user', content: `Go.\n\n${NOTICE}` }] })
  })

  it('together with every way to keep the model from calling tools', () => {
    const names = ['cache_control', 'tools', 'tool_choice', 'mcp_servers', 'model'] as const
    fc.assert(
      fc.property(fc.shuffledSubarray([...names]), fc.boolean(), (fields, isFirst) => {
        const values = { cache_control: MARK, tools: [{ name: 'a' }], tool_choice: {}, mcp_servers: [], model: 'm' }
        const list = { messages: [{ role: 'user', content: 'Go.' }] }
        const rest = Object.fromEntries(fields.map((name) => [name, values[name]]))
        const body: Record<string, unknown> = isFirst ? { ...list, ...rest } : { ...rest, ...list }
        for (const ban of ['no_tools', 'choice_none'] as const) {
          const request = inMessages(body)
          const edits = [...(request.notice(NOTICE, 'auto') ?? []), ...request.banTools(ban)]
          for (const all of [edits, edits.toReversed()]) {
            const sent = JSON.parse(applyEdits(Buffer.from(JSON.stringify(body)), all).toString())
            expect(sent).not.toHaveProperty('cache_control')
            if (ban === 'no_tools') for (const name of ['tools', 'tool_choice']) expect(sent).not.toHaveProperty(name)
            expect(sent.messages).toHaveLength(1)
          }
        }
      }),
    )
  })
})
