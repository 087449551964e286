import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Channel } from '../../../src/core/decide.ts'
import type { DialectRequest } from '../../../src/dialect/dialect.ts'
import { messages } from '../../../src/dialect/messages/index.ts'
import { applyEdits, type Edit } from '../../../src/json/edit.ts'
import { bodyText } from './text.ts'

const NOTICE = '[BUDGET: "14/20".]'
const CHANNELS: readonly Channel[] = ['auto', 'tool_result', 'system', 'user']
const CACHED = { cache_control: { type: 'ephemeral' } }

interface Body {
  readonly [field: string]: unknown
  readonly messages: readonly { readonly role?: unknown; readonly content?: unknown }[]
}

function requestOf(text: string): DialectRequest {
  const request = messages.read({ path: '', body: Buffer.from(text) })
  if (!request) throw new Error('not a Messages request')
  return request
}

function altered(text: string, change: (request: DialectRequest) => readonly Edit[] | undefined): string {
  return applyEdits(Buffer.from(text), change(requestOf(text)) ?? []).toString('utf8')
}

const withNotice = (text: string, channel: Channel = 'auto') =>
  altered(text, (request) => request.notice(NOTICE, channel))
const parsed = (text: string): Body => JSON.parse(text)
const body = (...all: readonly unknown[]) => JSON.stringify({ model: 'm', messages: all })
const user = (content: unknown) => ({ role: 'user', content })
const calling = { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'f', input: {} }] }
const result = { type: 'tool_result', tool_use_id: 'a', content: 'ok' }
const image = { type: 'image', source: { type: 'base64', data: '' } }
const notice = { type: 'text', text: NOTICE }

describe('a notice in a Messages request', () => {
  it.each([
    ['a text', 'Hi', `Hi\n\n${NOTICE}`],
    ['an empty text', '', NOTICE],
    ['null', null, NOTICE],
    ['nothing', undefined, NOTICE],
    ['no block', [], [notice]],
    ['a text block', [{ type: 'text', text: 'Hi' }], [{ type: 'text', text: `Hi\n\n${NOTICE}` }]],
    ['a picture last', [{ type: 'text', text: 'Hi' }, image], [{ type: 'text', text: 'Hi' }, image, notice]],
    [
      'a block to be cached',
      [{ type: 'text', text: 'Hi', ...CACHED }],
      [{ type: 'text', text: 'Hi', ...CACHED }, notice],
    ],
    ['a result', [result], [result, notice]],
    ['several results', [result, { ...result, is_error: true }], [result, { ...result, is_error: true }, notice]],
    ['a result to be cached', [{ ...result, ...CACHED }], [{ ...result, ...CACHED }, notice]],
    ['a result that is a picture', [{ ...result, content: [image] }], [{ ...result, content: [image] }, notice]],
    [
      'a text beside a result',
      [result, { type: 'text', text: 'Mind.' }],
      [result, { type: 'text', text: 'Mind.' }, notice],
    ],
  ])('a notice is put at the end of a message that contains %s', (_, content, expected) => {
    expect(parsed(withNotice(body(user('Go.'), calling, user(content)))).messages).toEqual([
      user('Go.'),
      calling,
      user(expected),
    ])
  })

  it('a notice goes to the last user message before the beginning of an answer', () => {
    const last = { role: 'assistant', content: 'It is' }
    expect(parsed(withNotice(body(user('Go.'), last))).messages).toEqual([user(`Go.\n\n${NOTICE}`), last])
  })

  it('a notice is a separate user message if that is the channel', () => {
    const all = [user('Go.'), calling, user([result])]
    expect(parsed(withNotice(body(...all), 'user')).messages).toEqual([...all, user(NOTICE)])
  })

  it.each([
    ['in a message of role system, which this API lacks', [user('Go.')], 'system'],
    ['in a request without messages', [], 'auto'],
    ['in a request without a user message', [{ role: 'assistant', content: 'a' }], 'auto'],
    ['in a content of no known form', [user({ text: 'a' })], 'auto'],
    ['in a number', [user(5)], 'auto'],
  ] as const)('a notice has no place %s', (_, all, channel) => {
    expect(requestOf(body(...all)).notice(NOTICE, channel)).toBeUndefined()
  })

  it('a notice changes no other byte: big integers, 1.0, order, white space, a byte order mark', () => {
    const text =
      '\ufeff{ "z":1.0,\n"messages" : [ {"content":[ {"type":"tool_result","n":9007199254740993} ], "role":"user"} ] ,"a":1E2}'
    const expected = text.replace('993} ]', `993},${JSON.stringify(notice)} ]`)
    expect(withNotice(text)).toBe(expected)
  })
})

const marksOf = (text: string) => text.match(/cache_control/g)?.length ?? 0

describe('an edited Messages request', () => {
  it('any request with a notice is valid JSON with nothing new but the notice at its end, and no more cache marks', () => {
    fc.assert(
      fc.property(bodyText, fc.constantFrom(...CHANNELS), (text, channel) => {
        const edits = requestOf(text).notice(NOTICE, channel)
        if (!edits) return
        const changed = applyEdits(Buffer.from(text), edits).toString('utf8')
        const [before, after] = [parsed(text), parsed(changed)]
        expect({ ...after, messages: [] }).toEqual({ ...before, messages: [] })
        const at = after.messages.findIndex(
          (message, index) => JSON.stringify(message) !== JSON.stringify(before.messages[index]),
        )
        expect(JSON.stringify(after.messages[at])).toContain(JSON.stringify(NOTICE).slice(1, -1))
        expect(after.messages.toSpliced(at, 1)).toEqual(
          before.messages.toSpliced(at, after.messages.length > before.messages.length ? 0 : 1),
        )
        expect(marksOf(changed)).toBe(marksOf(text))
        const [edit] = edits
        const bytes = Buffer.from(text)
        expect(bytes.toString('utf8', edit?.start, edit?.end)).toMatch(/^(null)?$/)
        expect(changed.startsWith(bytes.toString('utf8', 0, edit?.start))).toBe(true)
        expect(changed.endsWith(bytes.toString('utf8', edit?.end))).toBe(true)
      }),
      { numRuns: 300 },
    )
  })

  it('a request can take an announcement, a notice and a ban of tools together', () => {
    const all = fc.tuple(bodyText, fc.constantFrom(...CHANNELS), fc.constantFrom('choice_none', 'no_tools'))
    fc.assert(
      fc.property(all, ([text, channel, ban]) => {
        const changed = altered(text, (request) => [
          ...request.banTools(ban),
          ...request.announce('BUDGET'),
          ...(request.notice(NOTICE, channel) ?? []),
        ])
        const [before, after] = [parsed(text), parsed(changed)]
        expect(after.messages.slice(0, before.messages.length).map(({ role }) => role)).toEqual(
          before.messages.map(({ role }) => role),
        )
        expect(JSON.stringify(after['system'])).toContain('BUDGET')
        expect(marksOf(changed)).toBe(marksOf(text))
        if (ban === 'no_tools') expect(Object.keys(after).join()).not.toMatch(/tool/)
        else if ('tools' in after) expect(after['tool_choice']).toEqual({ type: 'none' })
      }),
      { numRuns: 200 },
    )
  })
})

describe('an announcement in a Messages request', () => {
  it.each([
    [undefined, 'Pace.'],
    ['Be good.', 'Be good.\n\nPace.'],
    [null, 'Pace.'],
    [7, 'Pace.'],
    [[], [{ type: 'text', text: 'Pace.' }]],
    [[{ type: 'text', text: 'Be good.' }], [{ type: 'text', text: 'Be good.\n\nPace.' }]],
    [
      [{ type: 'text', text: 'Be good.', ...CACHED }],
      [
        { type: 'text', text: 'Be good.', ...CACHED },
        { type: 'text', text: 'Pace.' },
      ],
    ],
  ])('an announcement ends the system text %j', (system, expected) => {
    const text = JSON.stringify({ model: 'm', system, messages: [user('Hi')] })
    expect(parsed(altered(text, (request) => request.announce('Pace.')))['system']).toEqual(expected)
  })
})

describe('an announcement beside a system text that begins with a line for billing', () => {
  const BILLING = 'x-anthropic-billing-header: cc_version=2.1.330; cc_entrypoint=cli;'
  const blocks = fc.array(fc.record({ type: fc.constant('text'), text: fc.string() }), { maxLength: 3 })
  const system = fc.oneof(
    blocks.map((others) => [{ type: 'text', text: BILLING }, ...others]),
    fc.string().map((text) => `${BILLING}\n${text}`),
  )
  const content = fc.oneof(
    fc.string(),
    fc.array(fc.constantFrom({ type: 'text', text: 'Go.' }, { type: 'text', text: 'On.', ...CACHED }), {
      minLength: 1,
    }),
    fc.constant([{ type: 'tool_result', tool_use_id: 'a', content: 'done' }]),
  )

  it('stands at the end of the first user message, and every other byte stays, also when a notice follows', () => {
    fc.assert(
      fc.property(system, content, fc.boolean(), (said, first, hasMore) => {
        const more = hasMore ? [{ role: 'assistant', content: 'Yes.' }, user('More.')] : []
        const text = JSON.stringify({
          model: 'm',
          system: said,
          messages: [{ role: 'user', content: first }, ...more],
        })
        const announced = altered(text, (request) => request.announce('Pace.'))
        const after = parsed(announced)
        expect(after['system']).toEqual(said)
        expect((after['messages'] as unknown[]).slice(1)).toEqual(more)
        expect(JSON.stringify((after['messages'] as unknown[])[0])).toMatch(/Pace\."(?:\}\]|)\}$/)
        expect(announced.startsWith(text.slice(0, text.indexOf('"messages"')))).toBe(true)
        const both = altered(text, (request) => [
          ...request.announce('Pace.'),
          ...(request.notice('Stop.', 'auto') ?? []),
        ])
        const end = announced.lastIndexOf('Pace.') + 'Pace.'.length
        expect(both.slice(0, end)).toBe(announced.slice(0, end))
      }),
    )
  })
})

describe('a ban of tools in a Messages request', () => {
  const tools = '"tools": [{"n": 1.0}]'
  it.each([
    ['choice_none', `{"messages":[],${tools}}`, `{"messages":[],${tools},"tool_choice":{"type":"none"}}`],
    [
      'choice_none',
      `{"tool_choice": {"type":"any"} ,"messages":[],${tools}}`,
      `{"tool_choice": {"type":"none"} ,"messages":[],${tools}}`,
    ],
    ['choice_none', '{"messages":[] }', '{"messages":[] }'],
    [
      'choice_none',
      '{"messages":[{"role":"system","content":[{"type":"tool_addition"}]}]}',
      '{"messages":[{"role":"system","content":[{"type":"tool_addition"}]}],"tool_choice":{"type":"none"}}',
    ],
    [
      'no_tools',
      `{${tools}, "tool_choice":{"type":"auto"},"messages":[],"mcp_servers":[],"n":1.0}`,
      '{"messages":[],"n":1.0}',
    ],
    [
      'choice_none',
      `{"messages":[],${tools},"context_management":{"edits":[{"type":"compact_20260112","pause_after_compaction":true, "n":1.0}]}}`,
      `{"messages":[],${tools},"context_management":{"edits":[{"type":"compact_20260112","pause_after_compaction":false, "n":1.0}]},` +
        '"tool_choice":{"type":"none"}}',
    ],
  ] as const)('the ban %s turns %s into %s', (ban, before, after) => {
    expect(altered(before, (request) => request.banTools(ban))).toBe(after)
  })
})

describe('a Messages request that is read', () => {
  it.each(['{}', '{"messages":null}', '{"messages":[{}],"messages":null}'])(
    'a request without a list of messages has no message: %s',
    (text) => {
      expect(messages.read({ path: '', body: Buffer.from(text) })?.conversation.length).toBe(0)
    },
  )

  it.each(['', '[]', '{"messages":{}}', '{"messages":"Hi"}'])(
    'a body of another form is no Messages request: %s',
    (text) => {
      expect(messages.read({ path: '', body: Buffer.from(text) })).toBeUndefined()
    },
  )

  it.each([
    [['v1', 'messages'], true],
    [['gateway', 'v1', 'messages'], true],
    [['v1', 'messages', 'count_tokens'], false],
    [['v1', 'messages', 'batches'], false],
    [['v1', 'threads', 'thread_1', 'messages'], false],
    [['messages'], false],
    [['publishers', 'anthropic', 'models', 'claude@1:rawPredict'], true],
    [['v1', 'projects', 'p', 'locations', 'l', 'publishers', 'anthropic', 'models', 'c:streamRawPredict'], true],
    [['publishers', 'anthropic', 'models', 'count-tokens:rawPredict'], false],
    [['publishers', 'anthropic', 'models', 'c:predict'], false],
    [['publishers', 'mistralai', 'models', 'c:rawPredict'], false],
    [[], false],
  ])('Messages claims the path %j: %s', (segments, claims) => {
    expect(messages.claims(segments) > 0).toBe(claims)
  })

  it('the model of a request to Vertex AI is that of its path', () => {
    const path = '/v1/projects/p/locations/l/publishers/anthropic/models/claude-x%4020250929:streamRawPredict'
    for (const text of ['{"messages":[],"stream":true}', '{"model":"other","messages":[],"stream":true}']) {
      const input = { path, body: Buffer.from(text) }
      expect(messages.modelOf(input)).toBe('claude-x@20250929')
      expect(messages.read(input)?.conversation).toMatchObject({ model: 'claude-x@20250929', streams: true })
    }
  })

  it('a message can contain several calls or results, beside texts', () => {
    const all = [
      user([{ type: 'text', text: 'One.' }, image, { type: 'text', text: 'Two.' }]),
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'Hm.', signature: 's' },
          { type: 'text', text: 'Both.' },
          { type: 'tool_use', id: 'a', name: 'f', input: { n: 1 } },
          { type: 'server_tool_use', id: 's', name: 'web_search', input: {} },
          { type: 'web_search_tool_result', tool_use_id: 's', content: [] },
          { type: 'tool_use', id: 'b', name: 'g', input: {} },
        ],
      },
      user([
        {
          type: 'tool_result',
          tool_use_id: 'a',
          content: [
            { type: 'text', text: 'x' },
            { type: 'text', text: 'y' },
          ],
        },
        { type: 'tool_result', tool_use_id: 'b', is_error: true },
        { type: 'text', text: 'Mind.' },
      ]),
    ]
    const text = JSON.stringify({ model: 'm', stream: true, tools: [{ name: 'f' }], messages: all })
    const { conversation } = requestOf(text.replace('{"n":1}', '{"n": 9007199254740993}'))
    expect(conversation).toMatchObject({
      model: 'm',
      streams: true,
      offersTools: true,
      length: 3,
    })
    expect(conversation?.systemText()).toBe('')
    expect([0, 1, 2].map((at) => conversation.role(at))).toEqual(['user', 'assistant', 'user'])
    expect([0, 1, 2].map((at) => conversation.texts(at))).toEqual([['One.', 'Two.'], ['Both.'], ['Mind.']])
    expect([0, 1, 2].map((at) => conversation.callCount(at))).toEqual([0, 2, 0])
    expect([0, 1, 2].map((at) => conversation.resultCount(at))).toEqual([0, 0, 2])
    expect(conversation.calls(1)).toEqual([
      { id: 'a', name: 'f', arguments: '{"n": 9007199254740993}' },
      { id: 'b', name: 'g', arguments: '{}' },
    ])
    expect(conversation.results(2)).toEqual([
      { callId: 'a', text: 'x\ny' },
      { callId: 'b', text: '' },
    ])
  })

  it('different pictures have different hashes, and their cache marks do not matter', () => {
    const shot = (data: string, extra: object = {}) => ({
      type: 'tool_result',
      tool_use_id: 'a',
      content: [{ type: 'image', source: { type: 'base64', data }, ...extra }],
    })
    const { conversation } = requestOf(body(user([shot('AA'), shot('AB'), shot('AA', CACHED)])))
    const [first, second, third] = conversation.results(0).map(({ text }) => text)
    expect(first).toMatch(/^\[image [g-v]{32}\]$/)
    expect(second).not.toBe(first)
    expect(third).toBe(first)
  })

  it('the system text is read without the line that contains a client’s version', () => {
    const billing = { type: 'text', text: 'x-anthropic-billing-header: cc_version=2.1.329.b5f; cch=00a1b;' }
    const system = [billing, { type: 'text', text: 'Be good.', ...CACHED }, { type: 'text', text: 'Be brief.' }]
    const { conversation } = requestOf(JSON.stringify({ system, messages: [] }))
    expect(conversation.systemText()).toBe('Be good.\nBe brief.')
  })

  it('any body is read as JSON.parse reads it', () => {
    const blocksOf = (content: unknown, type: string) =>
      Array.isArray(content) ? content.filter((block) => block?.type === type) : []
    fc.assert(
      fc.property(bodyText, (text) => {
        const { conversation } = requestOf(text)
        const { messages: all } = parsed(text)
        expect(conversation.length).toBe(all.length)
        for (const [at, { role, content }] of all.entries()) {
          const isUser = role === 'user'
          const isAssistant = role === 'assistant'
          expect(conversation.role(at)).toBe(isUser || isAssistant ? role : 'system')
          expect(conversation.texts(at)).toEqual(
            typeof content === 'string' ? [content] : blocksOf(content, 'text').map((block) => block.text),
          )
          expect(conversation.calls(at).map(({ id }) => id)).toEqual(
            isAssistant ? blocksOf(content, 'tool_use').map(({ id }) => id) : [],
          )
          expect(conversation.results(at).map(({ callId }) => callId)).toEqual(
            isUser ? blocksOf(content, 'tool_result').map((block) => block.tool_use_id) : [],
          )
          expect(conversation.callCount(at)).toBe(conversation.calls(at).length)
          expect(conversation.resultCount(at)).toBe(conversation.results(at).length)
        }
      }),
      { numRuns: 300 },
    )
  })
})

describe('a Messages request in a thread that the provider stores', () => {
  it.each([
    ['continue', 'msg_1'],
    ['new', undefined],
  ])('of type %s continues from %s', (type, previous) => {
    const thread = { type, previous_message_id: 'msg_1' }
    const { stored } = requestOf(JSON.stringify({ model: 'm', thread, messages: [user('Go.')] }))
    expect([stored !== undefined, stored?.previous]).toEqual([true, previous])
  })

  it.each([
    ['beside other results of that response', [user([result])], [user(['late', result])]],
    ['else in a message before all others', [user('Go on.')], [user(['late']), user('Go on.')]],
  ])('gets results of the response from which it continues, %s', (_, given, expected) => {
    const text = JSON.stringify({ thread: { type: 'continue', previous_message_id: 'msg_2' }, messages: given })
    const after = altered(text, ({ stored }) => stored?.injectPendingResults(['"late"'], 'msg_1'))
    expect(parsed(after)).toEqual({ thread: { type: 'continue', previous_message_id: 'msg_1' }, messages: expected })
  })
})

describe('the tools of a Messages request', () => {
  it('are called by the provider in an answer alone', () => {
    const block = { type: 'server_tool_use', id: 's', name: 'web_search', input: {} }
    const { conversation } = requestOf(body(user([block]), { role: 'assistant', content: [block] }))
    expect([0, 1].map((at) => conversation.ranByProvider?.(at))).toEqual([[], ['s']])
  })

  it('are read in lists within lists, but no deeper than any client nests them', () => {
    const nested = (depth: number): object =>
      depth === 0 ? { name: 'deep' } : { name: 'space', tools: [nested(depth - 1)] }
    const namesAt = (depth: number) =>
      requestOf(JSON.stringify({ messages: [], tools: [nested(depth)], tool_choice: { type: 'any' } })).forcedTools()
        .names
    expect([0, 1, 4].map(namesAt)).toEqual([['deep'], ['deep'], ['deep']])
    expect([5, 9].map(namesAt)).toEqual([['space'], ['space']])
  })
})

describe('reasoning that is bound to its prompt', () => {
  const isBound = (more: object) =>
    messages
      .read({ path: '', body: Buffer.from(JSON.stringify({ model: 'claude', max_tokens: 9, messages: [], ...more })) })
      ?.bindsReasoning?.()
  const user = { role: 'user', content: 'Go.' }
  const thought = { role: 'assistant', content: [{ type: 'thinking', thinking: 'Hm.', signature: 's' }] }
  const said = { role: 'assistant', content: 'Done.' }

  it('is there where the request asks for it, else where its newest answer has it', () => {
    const asked = ['enabled', 'adaptive', 'disabled'].map((type) => isBound({ thinking: { type }, messages: [user] }))
    expect(asked).toEqual([true, true, false])
    expect(isBound({ thinking: { type: 'disabled' }, messages: [user, thought, user] })).toBe(false)
    expect(
      [[], [user], [user, said, user], [user, thought, user], [user, thought, user, said]].map((shown) =>
        isBound({ messages: shown }),
      ),
    ).toEqual([false, false, false, true, false])
  })
})

describe('a Messages request', () => {
  const budgetOf = (task_budget: unknown) => {
    const text = JSON.stringify({ model: 'm', messages: [user('Go.')], output_config: { task_budget } })
    return requestOf(text).conversation.taskBudget
  }

  it.each([
    [
      { total: 100, remaining: 30 },
      { total: 100, spent: 70 },
    ],
    [
      { total: 100, remaining: 130 },
      { total: 100, spent: 0 },
    ],
    [{ total: 1 }, { total: 1, spent: 0 }],
    [{ total: 0, remaining: 0 }, undefined],
    [{ total: '100' }, undefined],
    [null, undefined],
  ])('with the task budget %j has the budget %j', (stated, expected) => {
    expect(budgetOf(stated)).toEqual(expected)
  })

  it('whose tools are banned keeps them in a thread that the provider stores, which has them as well', () => {
    const text = (thread?: object) => JSON.stringify({ thread, tools: [{ name: 'f' }], messages: [user('Go.')] })
    const banned = (body: string) => parsed(altered(body, (request) => request.banTools('no_tools')))
    expect(banned(text())).toEqual({ messages: [user('Go.')] })
    const thread = { type: 'continue', previous_message_id: 'msg_1' }
    expect(banned(text(thread))).toEqual({ ...parsed(text(thread)), tool_choice: { type: 'none' } })
  })

  const drop = { prefix_mismatch_behavior: 'drop_block' }
  it.each([
    ['{"n":1.0}', `{"n":1.0,"thinking":{"type":"adaptive","block_binding":${JSON.stringify(drop)}}}`],
    ['{"thinking":null}', `{"thinking":{"type":"adaptive","block_binding":${JSON.stringify(drop)}}}`],
    ['{"thinking":{"type":"enabled"}}', `{"thinking":{"type":"enabled","block_binding":${JSON.stringify(drop)}}}`],
    ['{"thinking":{"type":"disabled"}}', undefined],
    ['{"thinking":{"type":"enabled","block_binding":{}}}', undefined],
    ['{"thinking":"enabled"}', undefined],
  ])('%s whose reasoning is bound to another conversation asks to drop it: %s', (text, expected) => {
    const change = messages.boundThinking?.dropBoundThinking(Buffer.from(text))
    expect(change && applyEdits(Buffer.from(text), change.edits).toString()).toBe(expected)
  })
})
