import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Channel } from '../../../src/core/decide.ts'
import type { DialectRequest } from '../../../src/dialect/dialect.ts'
import { responses } from '../../../src/dialect/responses/index.ts'
import { applyEdits, type Edit } from '../../../src/json/edit.ts'
import { bodyText } from './text.ts'

const NOTICE = '[BUDGET: "14/20".]'
const CHANNELS: readonly Channel[] = ['auto', 'tool_result', 'system', 'user']

type Item = Readonly<Record<string, unknown>>
interface Body extends Item {
  readonly input: readonly Item[]
}

function altered(text: string, change: (request: DialectRequest) => readonly Edit[] | undefined): string {
  const bytes = Buffer.from(text)
  const request = responses.read({ path: '', body: bytes })
  if (!request) throw new Error('not a Responses request')
  return applyEdits(bytes, change(request) ?? []).toString('utf8')
}

const withNotice = (text: string, channel: Channel = 'auto') =>
  altered(text, (request) => request.notice(NOTICE, channel))
const parsed = (text: string): Body => JSON.parse(text)
const stateless = (...input: readonly unknown[]) => JSON.stringify({ model: 'm', store: false, input })
const conversationOf = (input: unknown, more: object = {}) => {
  const request = responses.read({
    path: '',
    body: Buffer.from(JSON.stringify({ model: 'm', input, ...more })),
  })
  if (!request) throw new Error('not a Responses request')
  return request.conversation
}

const user = (content: unknown) => ({ role: 'user', content })
const call = (id: string, more: object = {}) => ({
  type: 'function_call',
  id: `fc_${id}`,
  call_id: id,
  name: 'f',
  arguments: '{}',
  ...more,
})
const result = (id: string, output: unknown = 'done') => ({
  type: 'function_call_output',
  call_id: id,
  output,
})
const reasoning = { type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'xyz' }
const answer = (text: string) => ({
  type: 'message',
  role: 'assistant',
  content: [{ type: 'output_text', text, annotations: [] }],
})

describe('a Responses conversation', () => {
  it('all items of one response are one message', () => {
    const input = [
      { role: 'developer', content: 'Be good.' },
      user('Hi'),
      reasoning,
      answer('Two at once.'),
      call('a'),
      call('b'),
      result('a'),
      result('b', [{ type: 'input_text', text: 'x' }, { type: 'input_image' }]),
      answer('Done.'),
      user('More.'),
    ]
    const conversation = conversationOf(input, { instructions: 'You are an agent.' })
    expect(input.map((_, at) => conversation.role(at))).toEqual(
      'system user assistant part part part tool tool assistant user'.split(' '),
    )
    expect(conversation.systemText()).toBe('You are an agent.\nBe good.')
    expect([2, 3, 8].map((at) => conversation.texts(at))).toEqual([['Two at once.'], [], ['Done.']])
    expect([2, 4].map((at) => conversation.calls(at).map(({ id }) => id))).toEqual([['a', 'b'], []])
    expect([2, 4, 8].map((at) => conversation.callCount(at))).toEqual([2, 0, 0])
    expect([6, 7].map((at) => conversation.results(at))).toEqual([
      [{ callId: 'a', text: 'done' }],
      [{ callId: 'b', text: expect.stringMatching(/^x\n\[input_image [g-v]{32}\]$/) }],
    ])
  })

  it('calls of every kind of client tool are read, and their results', () => {
    const input = [
      { type: 'custom_tool_call', call_id: '1', name: 'patch', input: 'free text' },
      { type: 'local_shell_call', call_id: '2', action: { type: 'exec', command: ['ls'] } },
      { type: 'shell_call', call_id: '3', action: { commands: ['ls'] } },
      { type: 'apply_patch_call', call_id: '4', operation: { type: 'delete_file' } },
      { type: 'computer_call', call_id: '5', action: { type: 'screenshot' } },
      { type: 'mcp_approval_request', id: '6', name: 'drop', arguments: '{}' },
      { type: 'tool_search_call', call_id: '7', execution: 'client', arguments: {} },
      { type: 'custom_tool_call_output', call_id: '1', output: 'ok' },
      { type: 'local_shell_call_output', id: '2', output: '{}' },
      { type: 'computer_call_output', call_id: '5', output: { type: 'computer_screenshot', file_id: 'x' } },
      { type: 'mcp_approval_response', approval_request_id: '6', approve: false },
    ]
    const conversation = conversationOf(input)
    expect(conversation.calls(0).map(({ id, name }) => `${id} ${name}`)).toEqual([
      '1 patch',
      '2 local_shell',
      '3 shell',
      '4 apply_patch',
      '5 computer',
      '6 drop',
      '7 tool_search',
    ])
    expect(conversation.calls(0)[1]?.arguments).toBe('{"type":"exec","command":["ls"]}')
    expect([7, 8, 9, 10].flatMap((at) => conversation.results(at))).toEqual([
      { callId: '1', text: 'ok' },
      { callId: '2', text: '{}' },
      { callId: '5', text: expect.stringMatching(/^\[computer_screenshot [g-v]{32}\]$/) },
      { callId: '6', text: 'false' },
    ])
  })

  it('calls that the provider made itself are part of its response', () => {
    const hosted = ['web_search_call', 'file_search_call', 'code_interpreter_call', 'mcp_call']
    const input = [
      user('Hi'),
      ...hosted.map((type) => ({ type, id: 'x' })),
      { type: 'tool_search_call', call_id: 'y', execution: 'server' },
      { type: 'tool_search_output', call_id: 'y', execution: 'server' },
      { type: 'compaction', encrypted_content: 'x' },
      answer('Done.'),
    ]
    const conversation = conversationOf(input)
    const roles = input.map((_, at) => conversation.role(at))
    expect(roles.filter((role) => role === 'assistant')).toHaveLength(1)
    expect(roles.filter((role) => role === 'part')).toHaveLength(7)
    expect([conversation.callCount(1), conversation.texts(1)]).toEqual([0, ['Done.']])
  })

  it('calls that are only referenced by id are counted', () => {
    const references = ['rs_1', 'msg_1', 'fc_1'].map((id) => ({ type: 'item_reference', id }))
    const conversation = conversationOf([user('Hi'), ...references, result('a')])
    expect([conversation.callCount(1), conversation.texts(1)]).toEqual([1, ['msg_1']])
  })

  it('reasoning that is readable is no text of the answer', () => {
    const reasoning = { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'Hm.' }] }
    expect(conversationOf([user('Hi'), reasoning, answer('Done.')]).texts(1)).toEqual(['Done.'])
  })

  it('an item of an unknown kind belongs neither to the user nor to the model', () => {
    const conversation = conversationOf([{ type: 'memo', text: 'x' }, { role: 'critic', content: 'y' }, user('Hi')])
    expect([0, 1, 2].map((at) => conversation.role(at))).toEqual(['system', 'system', 'user'])
  })

  it('an input that is a text is one message', () => {
    const conversation = conversationOf('Hi "there"')
    expect([conversation.length, conversation.role(0), conversation.texts(0)]).toEqual([1, 'user', ['Hi "there"']])
  })

  it.each([
    [{ tools: [{ type: 'web_search' }] }, true],
    [{ tools: [] }, false],
    [{}, false],
    [{ prompt: { id: 'pmpt_1' } }, true],
  ])('a request with %j offers tools: %s', (more, offers) => {
    expect(conversationOf('Hi', more).offersTools).toBe(offers)
  })

  it.each([
    [{ previous_response_id: 'resp_1' }, 'resp_1'],
    [{ conversation: 'conv_1' }, 'conv_1'],
    [{ conversation: { id: 'conv_1' } }, 'conv_1'],
    [{ previous_response_id: null }, undefined],
  ])('a request continues from the response or conversation in %j', (more, previous) => {
    expect(
      responses.read({ path: '', body: Buffer.from(JSON.stringify({ input: [], ...more })) })?.stored?.previous,
    ).toBe(previous)
  })
})

describe('a Responses request that is read', () => {
  it.each(['{}', '{"input":null}', '{"input":[{}],"input":null}'])(
    'a request without an input has no message: %s',
    (text) => {
      expect(responses.read({ path: '', body: Buffer.from(text) })?.conversation.length).toBe(0)
    },
  )

  it.each(['', '[]', '{"input":{}}', '{"input":5}'])('a body of another form is no Responses request: %s', (text) => {
    expect(responses.read({ path: '', body: Buffer.from(text) })).toBeUndefined()
  })

  it.each([
    [['v1', 'responses'], true],
    [['openai', 'v1', 'responses'], true],
    [['v1', 'responses', 'resp_1', 'cancel'], false],
    [['v1', 'responses', 'compact'], true],
    [['v1', 'responses', 'input_tokens'], false],
  ])('Responses claims the path %j: %s', (segments, claims) => {
    expect(responses.claims(segments) > 0).toBe(claims)
  })
})

describe('a notice in a request whose client keeps the history', () => {
  it.each([
    ['a text', 'b', `b\n\n${NOTICE}`],
    ['an empty text', '', NOTICE],
    ['text parts', [{ type: 'input_text', text: 'b' }], [{ type: 'input_text', text: `b\n\n${NOTICE}` }]],
    ['no part', [], [{ type: 'input_text', text: NOTICE }]],
    [
      'a picture last',
      [{ type: 'input_image', image_url: 'x' }],
      [
        { type: 'input_image', image_url: 'x' },
        { type: 'input_text', text: NOTICE },
      ],
    ],
  ])('a notice is put at the end of a newest result or user message that is %s', (_, value, expected) => {
    const calls = [user('a'), call('1'), call('2'), result('1')]
    for (const channel of ['auto', 'tool_result'] as const) {
      const results = parsed(withNotice(stateless(...calls, result('2', value)), channel)).input
      expect(results).toEqual([...calls, result('2', expected)])
      expect(parsed(withNotice(stateless(user(value)), channel)).input).toEqual([user(expected)])
    }
  })

  it.each(['system', 'user'] as const)('a notice is a last message if the channel is %s', (channel) => {
    const items = [user('a'), call('1'), result('1')]
    expect(parsed(withNotice(stateless(...items), channel)).input).toEqual([
      ...items,
      { role: channel, content: NOTICE },
    ])
    const text = '{"input": "a\\u00e4" ,"store":false}'
    expect(parsed(withNotice(text, channel)).input).toEqual([user('aä'), { role: channel, content: NOTICE }])
  })

  it('a notice ends an input that is a text', () => {
    expect(withNotice('{"input":"Hi", "store":false,"n":1.0}')).toBe(
      '{"input":"Hi\\n\\n[BUDGET: \\"14/20\\".]", "store":false,"n":1.0}',
    )
  })

  it.each([
    ['a developer message', { role: 'developer', content: 'c' }],
    ['a beginning of the answer', { role: 'assistant', content: 'c' }],
  ])('a notice goes to the newest result before %s', (_, last) => {
    const items = [user('a'), call('1')]
    expect(parsed(withNotice(stateless(...items, result('1'), last))).input).toEqual([
      ...items,
      result('1', `done\n\n${NOTICE}`),
      last,
    ])
  })

  it('a notice is never placed in a result that a program of the provider reads', () => {
    const items = [user('a'), { type: 'shell_call', call_id: '1' }, { type: 'shell_call_output', output: [] }]
    const request = responses.read({ path: '', body: Buffer.from(stateless(...items)) })
    expect(request?.notice(NOTICE, 'auto')).toBeUndefined()
    expect(request?.notice(NOTICE, 'user')).toBeDefined()
  })

  it('a notice is in the input even if responses are stored, when the client sends its own history', () => {
    const input = [user('a'), call('1'), result('1')]
    const after = parsed(withNotice(JSON.stringify({ input })))
    expect(after).toEqual({ input: [user('a'), call('1'), result('1', `done\n\n${NOTICE}`)] })
  })
})

describe('a notice in a request whose history the provider stores', () => {
  const more = [
    { previous_response_id: 'resp_1', input: [result('1')] },
    { previous_response_id: 'resp_1', store: false, input: [result('1')] },
    { conversation: 'conv_1', input: [result('1')] },
    { input: [user('a')] },
    { input: 'a' },
    { store: true, input: 'a' },
    { previous_response_id: 'resp_1' },
  ]

  it.each(more)('a notice is an instruction, which the provider does not store: %j', (fields) => {
    for (const channel of ['auto', 'tool_result', 'system'] as const) {
      const put = (instructions: unknown) => parsed(withNotice(JSON.stringify({ ...fields, instructions }), channel))
      expect(put('Be good.')).toEqual({ ...fields, instructions: `Be good.\n\n${NOTICE}` })
      for (const none of [undefined, null, '']) expect(put(none)).toEqual({ ...fields, instructions: NOTICE })
    }
    expect(
      responses.read({ path: '', body: Buffer.from(JSON.stringify(fields)) })?.notice(NOTICE, 'user'),
    ).toBeUndefined()
  })

  it('a notice is the second paragraph of instructions that an announcement begins', () => {
    for (const instructions of [undefined, null, '', 'Be good.']) {
      const text = JSON.stringify({ input: 'a', tools: [], instructions })
      const both = altered(text, (request) => [
        ...request.announce('Pace yourself.'),
        ...request.banTools('choice_none'),
        ...(request.notice(NOTICE, 'auto') ?? []),
      ])
      const before = instructions ? `${instructions}\n\n` : ''
      expect(parsed(both)).toMatchObject({
        instructions: `${before}Pace yourself.\n\n${NOTICE}`,
        tool_choice: 'none',
      })
      expect(both.match(/"instructions"/g)).toHaveLength(1)
    }
  })
})

describe('a ban of tools in a Responses request', () => {
  it.each([
    ['choice_none', '{"input":"a","tools":[{}]}', '{"input":"a","tools":[{}],"tool_choice":"none"}'],
    [
      'choice_none',
      '{"tool_choice": {"type":"f"} ,"input":"a","background":true}',
      '{"tool_choice": "none" ,"input":"a","background":false}',
    ],
    [
      'no_tools',
      '{"tools":[{}], "tool_choice":"auto","n":1.0,"input":"a","parallel_tool_calls":true}',
      '{"n":1.0,"input":"a"}',
    ],
  ] as const)('the ban %s turns %s into %s', (ban, before, after) => {
    expect(altered(before, (request) => request.banTools(ban))).toBe(after)
  })
})

describe('any Responses request', () => {
  it('any request is read as JSON.parse reads it', () => {
    fc.assert(
      fc.property(bodyText, (text) => {
        const request = responses.read({ path: '', body: Buffer.from(text) })
        const body = parsed(text)
        const items: readonly Item[] =
          typeof body.input === 'string' ? [user(body.input)] : (body.input as readonly Item[])
        const conversation = request?.conversation
        expect(conversation?.length).toBe(items.length)
        const decoded = request?.index?.items.map(({ start, end }) =>
          JSON.parse(Buffer.from(text).toString('utf8', start, end)),
        )
        expect(decoded).toEqual(typeof body.input === 'string' ? [body.input] : items)
        const ids = items.flatMap((item) =>
          /_call$/.test(String(item['type'])) && 'call_id' in item ? [item['call_id']] : [],
        )
        const calls = items.flatMap((_, at) => conversation?.calls(at) ?? [])
        expect(calls.filter(({ name }) => name !== '').map(({ id }) => id)).toEqual(ids)
        for (const [at] of items.entries()) expect(conversation?.callCount(at)).toBe(conversation?.calls(at).length)
      }),
      { numRuns: 300 },
    )
  })

  it('any request stays valid JSON, and loses nothing, with an announcement, a notice and a ban of tools', () => {
    const all = fc.tuple(bodyText, fc.constantFrom(...CHANNELS), fc.constantFrom('choice_none', 'no_tools'))
    fc.assert(
      fc.property(all, ([text, channel, ban]) => {
        const result = altered(text, (request) => [
          ...request.announce('BUDGET'),
          ...request.banTools(ban),
          ...(request.notice(NOTICE, channel) ?? []),
        ])
        const [before, after] = [parsed(text), parsed(result)]
        expect(after['instructions']).toMatch(/BUDGET/)
        for (const key of ['model', 'seed', 'temperature', 'store', 'previous_response_id', 'conversation'])
          expect(after[key]).toEqual(before[key])
        if (ban === 'no_tools') expect(Object.keys(after).join()).not.toMatch(/tool/)
        else expect(after['tool_choice']).toBe('none')
        if (!Array.isArray(before.input)) return
        const isChanged = (item: unknown, at: number) => JSON.stringify(item) !== JSON.stringify(before.input[at])
        expect(after.input.filter(isChanged).length).toBeLessThanOrEqual(1)
        expect(after.input.length - before.input.length).toBeLessThanOrEqual(1)
      }),
      { numRuns: 300 },
    )
  })
})

describe('results that the provider waits for in Responses', () => {
  it.each(['', ',"input":null', ',"input":[]'])(
    'pending results are sent with a request that has no input: %s',
    (input) => {
      const body = Buffer.from(`{"previous_response_id":"resp_1"${input}}`)
      const edits =
        responses
          .read({ path: '', body })
          ?.stored?.injectPendingResults(['{"type":"function_call_output"}'], undefined) ?? []
      expect(JSON.parse(applyEdits(body, edits).toString())).toEqual({
        previous_response_id: 'resp_1',
        input: [{ type: 'function_call_output' }],
      })
    },
  )
})
