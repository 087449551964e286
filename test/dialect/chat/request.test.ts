import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Channel } from '../../../src/core/decide.ts'
import { chat } from '../../../src/dialect/chat/index.ts'
import type { DialectRequest } from '../../../src/dialect/dialect.ts'
import { applyEdits, type Edit } from '../../../src/json/edit.ts'
import { bodyText } from './text.ts'

const NOTICE = '[BUDGET: "14/20".]'
const CHANNELS: readonly Channel[] = ['auto', 'tool_result', 'system', 'user']

interface Body {
  readonly [field: string]: unknown
  readonly messages: readonly Record<string, unknown>[]
}

function altered(text: string, change: (request: DialectRequest) => readonly Edit[] | undefined): string {
  const bytes = Buffer.from(text)
  const request = chat.read({ path: '', body: bytes })
  if (!request) throw new Error('not a chat request')
  return applyEdits(bytes, change(request) ?? []).toString('utf8')
}

const withNotice = (text: string, channel: Channel = 'auto') =>
  altered(text, (request) => request.notice(NOTICE, channel))
const parsed = (text: string): Body => JSON.parse(text)
const body = (...messages: readonly unknown[]) => JSON.stringify({ model: 'm', messages })
const call = { role: 'assistant', content: null, tool_calls: [] }

/** Returns the parts of a content in any form. */
function partsOf(content: unknown): unknown[] {
  if (Array.isArray(content)) return content
  return typeof content === 'string' && content !== '' ? [{ type: 'text', text: content }] : []
}

/** True if `after` is `before` with something added at its end. */
function isExtended(before: unknown, after: unknown): boolean {
  const [old, fresh] = [partsOf(before), partsOf(after)]
  const grown = old.every((part, at) => {
    const now = fresh[at]
    if (JSON.stringify(part) === JSON.stringify(now)) return true
    const [was, is] = [part, now] as { text?: string }[]
    return at === old.length - 1 && is?.text !== undefined && is.text.startsWith(was?.text ?? '\0')
  })
  return grown && JSON.stringify(fresh).includes(JSON.stringify(NOTICE).slice(1, -1))
}

describe('a notice in a Chat Completions request', () => {
  const image = { type: 'image_url', image_url: { url: 'data:,' } }
  const cached = { type: 'text', text: 'Hi', cache_control: { type: 'ephemeral' } }
  it.each([
    ['a text', 'Hi', `Hi\n\n${NOTICE}`],
    ['an empty text', '', NOTICE],
    ['null', null, NOTICE],
    ['nothing', undefined, NOTICE],
    ['no part', [], [{ type: 'text', text: NOTICE }]],
    ['a text part', [image, { type: 'text', text: 'Hi' }], [image, { type: 'text', text: `Hi\n\n${NOTICE}` }]],
    [
      'a picture last',
      [{ type: 'text', text: 'Hi' }, image],
      [{ type: 'text', text: 'Hi' }, image, { type: 'text', text: NOTICE }],
    ],
    ['a part to be cached', [cached], [cached, { type: 'text', text: NOTICE }]],
  ])('a notice is put at the end of a message that contains %s', (_, content, expected) => {
    for (const role of ['user', 'tool', 'function']) {
      const { messages } = parsed(withNotice(body({ role, content })))
      expect(messages).toEqual([{ role, content: expected }])
    }
  })

  it.each([
    [
      'the newest tool result',
      [{ role: 'user', content: 'a' }, call, { role: 'tool', content: 'b' }, { role: 'tool', content: 'c' }],
      3,
    ],
    [
      'the last user message',
      [
        { role: 'user', content: 'a' },
        { role: 'user', content: 'b' },
      ],
      1,
    ],
    [
      'the last user message before a beginning of the answer',
      [
        { role: 'user', content: 'a' },
        { role: 'assistant', content: 'b' },
      ],
      0,
    ],
    [
      'the user message after tool results',
      [
        { role: 'tool', content: 'a' },
        { role: 'user', content: 'b' },
      ],
      1,
    ],
    [
      'the last user message before a system message',
      [
        { role: 'user', content: 'a' },
        { role: 'system', content: 'b' },
      ],
      0,
    ],
    [
      'the newest tool result before a system message',
      [{ role: 'user', content: 'a' }, call, { role: 'tool', content: 'b' }, { role: 'system', content: 'c' }],
      2,
    ],
    [
      'the newest tool result before a beginning of the answer',
      [
        { role: 'user', content: 'a' },
        call,
        { role: 'tool', content: 'b' },
        { role: 'assistant', content: 'c', prefix: true },
      ],
      2,
    ],
  ])('a notice goes to %s', (_, messages, at) => {
    for (const channel of ['auto', 'tool_result'] as const) {
      const changed = parsed(withNotice(body(...messages), channel)).messages
      expect(changed.map(({ content }) => String(content).endsWith(NOTICE)).indexOf(true)).toBe(at)
      expect(changed).toHaveLength(messages.length)
    }
  })

  it.each(['system', 'user'] as const)('a notice is a last message of role %s if that is the channel', (channel) => {
    const messages = [{ role: 'user', content: 'a' }, call, { role: 'tool', content: 'b' }]
    const changed = parsed(withNotice(body(...messages), channel)).messages
    expect(changed).toEqual([...messages, { role: channel, content: NOTICE }])
  })

  it.each([
    ['no message', []],
    [
      'no user message and no tool result at the end',
      [
        { role: 'system', content: 'a' },
        { role: 'assistant', content: 'b' },
      ],
    ],
    ['a content of no known form', [{ role: 'user', content: { text: 'a' } }]],
    ['a number for content', [{ role: 'user', content: 5 }]],
  ])('a notice has no place in a request with %s', (_, messages) => {
    const request = chat.read({ path: '', body: Buffer.from(body(...messages)) })
    expect(request?.notice(NOTICE, 'auto')).toBeUndefined()
  })

  it('a notice changes no other byte: big integers, 1.0, order, white space, a byte order mark', () => {
    const text =
      '\ufeff{ "z":1.0,\n"messages" : [ {"content":"a\\u00e4\\/", "role":"user","n":9007199254740993} ] ,"a":1E2, "tools":[]}'
    expect(withNotice(text)).toBe(text.replace('\\/"', '\\/\\n\\n[BUDGET: \\"14/20\\".]"'))
  })
})

describe('an edited Chat Completions request', () => {
  it('any request with a notice is valid JSON with the same messages and nothing new but the notice at its end', () => {
    fc.assert(
      fc.property(bodyText, fc.constantFrom(...CHANNELS), (text, channel) => {
        const request = chat.read({ path: '', body: Buffer.from(text) })
        const edits = request?.notice(NOTICE, channel)
        if (!edits) return
        const result = applyEdits(Buffer.from(text), edits).toString('utf8')
        const [before, after] = [parsed(text), parsed(result)]
        expect({ ...after, messages: [] }).toEqual({ ...before, messages: [] })
        const isChanged = (message: unknown, at: number) =>
          JSON.stringify(message) !== JSON.stringify(before.messages[at])
        const changed = after.messages.filter(isChanged)
        expect(changed).toHaveLength(1)
        const at = after.messages.findIndex(isChanged)
        expect(after.messages.length - before.messages.length).toBe(at === before.messages.length ? 1 : 0)
        expect(isExtended(before.messages[at]?.['content'], changed[0]?.['content'])).toBe(true)
        // One insertion, or null replaced: the bytes around it are the client's.
        const [edit] = edits
        const bytes = Buffer.from(text)
        expect(bytes.toString('utf8', edit?.start, edit?.end)).toMatch(/^(null)?$/)
        expect(result.startsWith(bytes.toString('utf8', 0, edit?.start))).toBe(true)
        expect(result.endsWith(bytes.toString('utf8', edit?.end))).toBe(true)
      }),
      { numRuns: 300 },
    )
  })

  it('a request can take an announcement, a notice and a ban of tools together', () => {
    const all = fc.tuple(bodyText, fc.constantFrom(...CHANNELS), fc.constantFrom('choice_none', 'no_tools'))
    fc.assert(
      fc.property(all, ([text, channel, ban]) => {
        const result = altered(text, (request) => [
          ...request.banTools(ban),
          ...request.announce('BUDGET'),
          ...(request.notice(NOTICE, channel) ?? []),
        ])
        const [before, after] = [parsed(text), parsed(result)]
        const isFirst = ['user', 'assistant', 'tool', 'function'].includes(String(before.messages[0]?.['role']))
        expect(
          after.messages.map(({ role }) => role).slice(isFirst ? 1 : 0, before.messages.length + (isFirst ? 1 : 0)),
        ).toEqual(before.messages.map(({ role }) => role))
        expect(JSON.stringify(after.messages[0])).toContain('BUDGET')
        if (ban === 'no_tools') expect(Object.keys(after).join()).not.toMatch(/tool|function/)
        else expect('tools' in after ? after['tool_choice'] : 'none').toBe('none')
      }),
      { numRuns: 200 },
    )
  })
})

describe('an announcement in a Chat Completions request', () => {
  const announced = (...messages: readonly unknown[]) =>
    parsed(altered(body(...messages), (request) => request.announce('Pace yourself.'))).messages
  const user = { role: 'user', content: 'Hi' }

  it.each(['system', 'developer'])('an announcement ends the %s message that begins the conversation', (role) => {
    expect(announced({ role, content: 'Be good.' }, user)).toEqual([
      { role, content: 'Be good.\n\nPace yourself.' },
      user,
    ])
    expect(announced({ role, content: null }, user)).toEqual([{ role, content: 'Pace yourself.' }, user])
  })

  it.each([
    ['there is none', [user]],
    ['there is none at the beginning', [user, { role: 'system', content: 'Be good.' }]],
    ['there is no message at all', []],
    ['its content has no known form', [{ role: 'system', content: 7 }, user]],
  ])('an announcement is a separate system message if %s', (_, messages) => {
    expect(announced(...messages)).toEqual([{ role: 'system', content: 'Pace yourself.' }, ...messages])
  })
})

describe('a ban of tools in a Chat Completions request', () => {
  const tools = '"tools": [{"n": 1.0}]'
  const functions = '"functions":[{}]'
  it.each([
    ['choice_none', `{"messages":[],${tools}}`, `{"messages":[],${tools},"tool_choice":"none"}`],
    [
      'choice_none',
      `{"tool_choice": {"a":1} ,"messages":[],${tools}}`,
      `{"tool_choice": "none" ,"messages":[],${tools}}`,
    ],
    ['choice_none', `{${functions},"messages":[]}`, `{${functions},"messages":[],"function_call":"none"}`],
    ['choice_none', '{"messages":[] }', '{"messages":[] }'],
    ['no_tools', `{${tools}, "tool_choice":"auto","messages":[],"parallel_tool_calls":true}`, '{"messages":[]}'],
    [
      'no_tools',
      `{"model":"m", ${functions},"messages":[], "function_call":"auto", "n":1.0}`,
      '{"model":"m","messages":[],"n":1.0}',
    ],
    ['no_tools', '{"messages":[], "n":1.0}', '{"messages":[], "n":1.0}'],
    ['no_tools', `{"n": 3 ,${tools},"messages":[]}`, '{"n": 1,"messages":[]}'],
    ['choice_none', `{"messages":[],${tools},"n":2}`, `{"messages":[],${tools},"n":1,"tool_choice":"none"}`],
    ['choice_none', '{"messages":[],"n":null}', '{"messages":[],"n":null}'],
  ] as const)('the ban %s turns %s into %s', (ban, before, after) => {
    expect(altered(before, (request) => request.banTools(ban))).toBe(after)
  })
})

describe('a Chat Completions request with fewer tools', () => {
  it.each(['function', 'custom'])('loses the one with that name, which stands in its %s', (type) => {
    const tool = (name: string) => ({ type, [type]: { name } })
    const before = JSON.stringify({ messages: [], tools: [tool('search'), tool('read'), tool('function')] })
    const after = parsed(altered(before, (request) => request.dropTools((name) => name === 'search', [])))
    expect(after['tools']).toEqual([tool('read'), tool('function')])
  })
})

describe('the tools that a Chat Completions request forces', () => {
  const nested = (levels: number): object => ({
    name: `f${levels}`,
    ...(levels > 0 ? { tools: [nested(levels - 1)] } : {}),
  })

  it.each([
    [0, ['f0']],
    [1, ['f0']],
    [4, ['f0']],
    [5, ['f1']],
    [6, ['f2']],
  ])('are those in its lists of tools as far as the fifth; of %s levels of lists they are %j', (levels, names) => {
    const request = chat.read({
      path: '',
      body: Buffer.from(JSON.stringify({ messages: [], tools: [nested(levels)], tool_choice: 'required' })),
    })
    expect(request?.forcedTools()).toEqual({ isNamed: false, names })
  })
})

describe('a Chat Completions request that is read', () => {
  it.each(['{}', '{"messages":null}', '{"messages":[{}],"messages":null}'])(
    'a request without a list of messages has no message: %s',
    (text) => {
      expect(chat.read({ path: '', body: Buffer.from(text) })?.conversation.length).toBe(0)
    },
  )

  it.each(['', '[]', '"a"', '{"messages":{}}', '{"messages":[{}],"messages":"a"}'])(
    'a body of another form is no chat request: %s',
    (text) => {
      expect(chat.read({ path: '', body: Buffer.from(text) })).toBeUndefined()
    },
  )

  it.each([
    ['{"messages":[1]}', 'an object at byte 13'],
    ['{"messages":[{}', 'a comma at byte 15'],
    ['{"messages":[{}],', 'a key at byte 17'],
    ['{"messages":[{}]} x', 'the end of the text at byte 18'],
  ])('a text that is not JSON throws: %s', (text, expected) => {
    expect(() => chat.read({ path: '', body: Buffer.from(text) })).toThrow(`expected ${expected}`)
  })

  it.each([
    [['v1', 'chat', 'completions'], true],
    [['openai', 'deployments', 'gpt', 'chat', 'completions'], true],
    [['v1', 'completions'], false],
    [['v1', 'chat', 'completions', 'abc'], false],
    [[], false],
  ])('Chat Completions claims the path %j: %s', (segments, claims) => {
    expect(chat.claims(segments) > 0).toBe(claims)
  })

  it('a request is read as a conversation, whatever types its fields have', () => {
    const custom = { id: 'd', type: 'custom', custom: { name: 'g', input: 'free text' } }
    const modern = { id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }
    const messages = [
      { role: 'system', content: 'One.' },
      { role: 'developer', content: [{ type: 'text', text: 'Two.' }, { type: 'image_url' }, 'Three.'] },
      { role: 'user', content: 5, tool_calls: [modern] },
      { role: 'assistant', tool_calls: [modern, custom, null, 'x', {}] },
      { role: 'assistant', function_call: { name: 'old', arguments: 7 } },
      {
        role: 'tool',
        tool_call_id: 'c',
        content: [
          { type: 'text', text: 'a' },
          { type: 'text', text: 'b' },
        ],
      },
      { role: 'function', name: 'old', content: null },
    ]
    const request = chat.read({
      path: '',
      body: Buffer.from(JSON.stringify({ model: 4, messages, stream: 'yes', tools: 'none' })),
    })
    const conversation = request?.conversation
    expect(conversation).toMatchObject({
      model: '',
      streams: false,
      offersTools: false,
      length: 7,
    })
    expect(conversation?.systemText()).toBe('One.\nTwo.\nThree.')
    expect(messages.map((_, at) => conversation?.role(at))).toEqual([
      'system',
      'system',
      'user',
      'assistant',
      'assistant',
      'tool',
      'tool',
    ])
    expect([2, 3, 4].map((at) => conversation?.calls(at))).toEqual([
      [],
      [
        { id: 'c', name: 'f', arguments: '{}' },
        { id: 'd', name: 'g', arguments: 'free text' },
      ],
      [{ id: 'old', name: 'old', arguments: '' }],
    ])
    expect([1, 5, 6].map((at) => conversation?.results(at))).toEqual([
      [],
      [{ callId: 'c', text: 'a\nb' }],
      [{ callId: 'old', text: '' }],
    ])
    expect([request?.sessionIdAt(['stream']), request?.sessionIdAt(['nothing'])]).toEqual(['yes', undefined])
  })
})
