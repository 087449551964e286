import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { callsAt } from '../../../src/core/loop/tool-call.ts'
import type { DialectRequest } from '../../../src/dialect/dialect.ts'
import { gemini } from '../../../src/dialect/gemini/index.ts'
import { applyEdits, type Edit } from '../../../src/json/edit.ts'
import { POLICY } from '../../core/loop/loop-story.ts'

const PATH = '/v1beta/models/gemini-2.5-pro:generateContent'

function read(body: string, path = PATH, query?: string): DialectRequest {
  const request = gemini.read({ path, query, body: Buffer.from(body) })
  if (!request) throw new Error('not read')
  return request
}

const edited = (body: string, edits: readonly Edit[] = []) =>
  JSON.parse(applyEdits(Buffer.from(body), edits).toString())

/** A body with every name of the API in its second spelling. */
const inSnakeCase = (body: string) =>
  body.replace(/"([a-z]+[A-Z]\w*)":/g, (key) => key.replace(/[A-Z]/g, '_$&').toLowerCase())

const BODY = JSON.stringify({
  systemInstruction: { parts: [{ text: 'Be short.' }] },
  contents: [
    { role: 'user', parts: [{ text: 'Go.' }, { inlineData: { mimeType: 'image/png', data: 'aGk=' } }] },
    {
      role: 'model',
      parts: [{ text: 'Hm.', thought: true }, { functionCall: { id: 'a', name: 'read', args: { n: 1 } } }],
    },
    { role: 'user', parts: [{ functionResponse: { id: 'a', name: 'read', response: { output: 'one\ntwo' } } }] },
  ],
  tools: [{ functionDeclarations: [{ name: 'read' }, { name: 'write' }] }, { googleSearch: {} }],
  toolConfig: { functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['read'] } },
  generationConfig: { responseMimeType: 'application/json', candidateCount: 3, maxOutputTokens: 7 },
})

describe.each([
  ['in JSON names', BODY],
  ['in the names of its definitions', inSnakeCase(BODY)],
])('a request %s', (_, body) => {
  const request = read(body)
  const { conversation } = request

  it('shows its words, calls and results, without thoughts', () => {
    expect(conversation).toMatchObject({ model: 'gemini-2.5-pro', streams: false, offersTools: true, length: 3 })
    expect(conversation.systemText()).toBe('Be short.')
    expect([0, 1, 2].map((at) => conversation.role(at))).toEqual(['user', 'assistant', 'user'])
    expect([0, 1, 2].map((at) => conversation.texts(at))).toEqual([['Go.'], [], []])
    expect(conversation.calls(1)).toEqual([{ id: 'a', name: 'read', arguments: '{"n":1}' }])
    expect(conversation.results(2)).toEqual([{ callId: 'a', name: 'read', text: 'one\ntwo' }])
    expect(conversation.pictures?.(0)).toHaveLength(1)
  })

  it('states what it demands, and the numbers that shape its answer', () => {
    expect(request.demands()).toMatchObject({ hasFormat: true })
    expect(request.forcedTools()).toEqual({ names: ['read'], isNamed: true })
    expect(request.parameters?.()).toEqual({ 'choice.count': 3, max_tokens: 7 })
  })

  it('bans tools where it says how they may be called, and asks for one candidate', () => {
    const banned = JSON.stringify(edited(body, request.banTools('choice_none')))
    expect(banned).toContain('{"mode":"NONE"}')
    expect(banned).not.toContain('"ANY"')
    expect(banned.toLowerCase().match(/toolconfig|tool_config/g)).toHaveLength(1)
    expect(banned).toMatch(/"candidate_?[cC]ount":1\b/)
    const without = edited(body, request.banTools('no_tools'))
    expect(Object.keys(without).filter((key) => /tool/i.test(key))).toEqual([])
  })

  it('drops tools that nobody forces, and keeps the rest of their list', () => {
    const { tools } = edited(
      body,
      request.dropTools((name) => name !== 'other', []),
    )
    expect(tools).toEqual([{ [body === BODY ? 'functionDeclarations' : 'function_declarations']: [{ name: 'read' }] }])
  })
})

describe('a request to Gemini', () => {
  it.each([
    ['streamGenerateContent', 'alt=sse', true, false],
    ['streamGenerateContent', 'key=k&alt=sse', true, false],
    ['streamGenerateContent', undefined, false, true],
    ['generateContent', 'alt=sse', false, false],
  ])('of %s with the query %s asks for events: %s, for a list: %s', (verb, query, streams, isList) => {
    const request = read('{"contents":[]}', `/v1/projects/p/locations/l/publishers/google/models/m:${verb}`, query)
    expect([request.conversation.streams, request.isList]).toEqual([streams, isList])
    expect(request.conversation.model).toBe('m')
  })

  it('gets texts of Governor also where a single part stands in place of a list', () => {
    const body = '{"systemInstruction":{"parts":{"text":"Short."}},"contents":[{"parts":{"text":"Go."}}]}'
    const request = read(body)
    expect(request.conversation.texts(0)).toEqual(['Go.'])
    const after = edited(body, [...(request.notice('A notice.', 'auto') ?? []), ...request.announce('A budget.')])
    expect(after).toEqual({
      systemInstruction: { parts: { text: 'Short.\n\nA budget.' } },
      contents: [{ parts: { text: 'Go.\n\nA notice.' } }],
    })
  })

  it('holds nothing where something else stands in place of the parts', () => {
    const { conversation } = read('{"contents":[{"parts":null},{"parts":"Go."},{"parts":7,"role":"user"}]}')
    expect([0, 1, 2].map((at) => conversation.texts(at))).toEqual([[], [], []])
    expect([0, 1, 2].flatMap((at) => conversation.pictures?.(at) ?? [])).toEqual([])
    expect([0, 1, 2].map((at) => conversation.role(at))).toEqual(['user', 'user', 'user'])
  })

  it('with a cached prompt keeps its system text and its choice of tools, which the cache holds', () => {
    const body = '{"cachedContent":"cachedContents/1","contents":[{"role":"user","parts":[{"text":"Go."}]}]}'
    const request = read(body)
    expect(request.conversation.offersTools).toBe(true)
    expect([...request.announce('A budget.'), ...request.banTools('choice_none')]).toEqual([])
  })

  it('gets no notice in a channel that its API does not have', () => {
    expect(read(BODY).notice('A notice.', 'system')).toBeUndefined()
    expect(edited(BODY, read(BODY).notice('A notice.', 'user')).contents.at(-1)).toEqual({
      role: 'user',
      parts: [{ text: 'A notice.' }],
    })
  })

  it('shows an answer in several contents, as SDKs send the events of one, as one message', () => {
    const call = (name: string) => ({ functionCall: { name, args: { n: 1 } } })
    const contents = [
      { role: 'user', parts: [{ text: 'Go.' }] },
      { role: 'model', parts: [{ text: 'Let ' }, { text: 'Hm.', thought: true }] },
      { role: 'model', parts: [{ text: 'me see.', thought: false }, call('a')] },
      { role: 'model' },
      { role: 'model', parts: [{ functionCall: { name: 'b' } }] },
      { role: 'user', parts: [{ text: 'Well?' }] },
    ]
    const { conversation } = read(JSON.stringify({ contents }))
    expect(contents.map((_, at) => conversation.role(at))).toEqual([
      ...['user', 'assistant', 'part', 'part', 'part', 'user'],
    ])
    expect(contents.map((_, at) => conversation.texts(at).join(''))).toEqual([
      ...['Go.', 'Let me see.', '', '', '', 'Well?'],
    ])
    expect(conversation.calls(1)).toEqual([
      { id: '', name: 'a', arguments: '{"n":1}' },
      { id: '', name: 'b', arguments: '{}' },
    ])
    expect(conversation.calls(2)).toEqual([])
  })

  it('takes the only text of a result for its words, and else shows the whole in JSON, with what is attached', () => {
    const attached = { inlineData: { mimeType: 'image/png', data: 'aGk=' } }
    const responses: readonly [object, string | RegExp][] = [
      [{ response: { output: 'one' } }, 'one'],
      [{ response: { anything: 'one' } }, 'one'],
      [{ response: { output: 7 } }, '{"output":7}'],
      [{ response: { output: 'one', error: 'two' } }, '{"output":"one","error":"two"}'],
      [{ response: ['one'] }, '["one"]'],
      [{}, '""'],
      [{ response: { output: 'one' }, parts: [attached] }, /^one\n\[ [g-v]+\]$/],
    ]
    const parts = [
      { text: 'See:' },
      ...responses.map(([response], at) => ({ functionResponse: { id: `i${at}`, name: 'f', ...response } })),
    ]
    const body = JSON.stringify({ contents: [{ role: 'user', parts }, { parts: [{ text: 'Go.' }] }] })
    const { conversation } = read(body)
    for (const [at, { text }] of conversation.results(0).entries()) {
      const [, expected = ''] = responses[at] ?? []
      if (typeof expected === 'string') expect(text).toBe(expected)
      else expect(text).toMatch(expected)
    }
    const sizes = conversation.resultSizes?.(0) ?? []
    expect(sizes.map(({ callId, name }) => [callId, name])).toEqual(responses.map((_, at) => [`i${at}`, 'f']))
    expect(sizes.map(({ bytes }) => bytes)).toEqual(parts.slice(1).map((part) => JSON.stringify(part).length))
    expect(conversation.resultSizes?.(1)).toEqual([])
  })

  it('shows the pictures of a user alone, and no texts, calls or thoughts as such', () => {
    const inlineData = { mimeType: 'image/png', data: 'aGk=' }
    const parts = [{ text: 'a' }, { text: 'b', thought: true }, { functionCall: { name: 'f' } }, { inlineData }]
    const { conversation } = read(JSON.stringify({ contents: [{ parts }, { role: 'model', parts }] }))
    expect(conversation.pictures?.(0)).toHaveLength(1)
    expect(conversation.pictures?.(1)).toEqual([])
    expect([conversation.calls(0), conversation.results(1)]).toEqual([[], []])
  })

  it.each([
    ['a paragraph of its last text', { parts: [{ text: 'Go.' }] }, { parts: [{ text: 'Go.\n\nN.' }] }],
    [
      'a part after results',
      { parts: [{ functionResponse: { name: 'f' } }, { text: 'Go.' }] },
      { parts: [{ functionResponse: { name: 'f' } }, { text: 'Go.' }, { text: 'N.' }] },
    ],
    [
      'a part behind an only part without a text',
      { parts: { inlineData: {} } },
      { parts: [{ inlineData: {} }, { text: 'N.' }] },
    ],
    ['a part behind an only part with no words', { parts: { text: 7 } }, { parts: [{ text: 7 }, { text: 'N.' }] }],
    ['its only part', { role: 'user' }, { role: 'user', parts: [{ text: 'N.' }] }],
  ])('gets a notice as %s', (_, content, after) => {
    const body = JSON.stringify({ contents: [content] })
    expect(edited(body, read(body).notice('N.', 'auto')).contents).toEqual([after])
  })

  it('gets no notice where it has no contents, or something else in place of the parts', () => {
    for (const body of ['{"contents":[]}', '{"contents":[{"parts":"Go."}]}', '{"contents":[{"parts":null}]}'])
      expect(read(body).notice('N.', 'auto')).toBeUndefined()
  })

  it('gets an announcement at the end of its system text, and else one', () => {
    const announced = (systemInstruction: unknown, name = 'systemInstruction') => {
      const body = JSON.stringify({ [name]: systemInstruction, contents: [] })
      return edited(body, read(body).announce('A.'))
    }
    const parts = [{ text: 'A.' }]
    expect(edited('{"contents":[]}', read('{"contents":[]}').announce('A.'))).toEqual({
      contents: [],
      systemInstruction: { parts },
    })
    expect(announced({ role: 'user' })).toEqual({ contents: [], systemInstruction: { parts } })
    expect(announced({}, 'system_instruction')).toEqual({ contents: [], system_instruction: { parts } })
    const listed = { parts: [{ text: 'Be short.' }] }
    expect(announced(listed).systemInstruction).toEqual({ parts: [{ text: 'Be short.\n\nA.' }] })
  })

  it('states how tools may be called only if it offers some, and no more than asked', () => {
    const tools = [{ functionDeclarations: [{ name: 'read' }] }]
    const banned = (more: object, ...[ban, forced]: Parameters<DialectRequest['banTools']>) => {
      const body = JSON.stringify({ contents: [], ...more })
      return edited(body, read(body).banTools(ban, forced))
    }
    const none = { functionCallingConfig: { mode: 'NONE' } }
    expect(banned({}, 'choice_none')).toEqual({ contents: [] })
    expect(banned({ tools }, 'choice_none').toolConfig).toEqual(none)
    expect(banned({ tools, toolConfig: null }, 'choice_none').toolConfig).toEqual(none)
    expect(banned({ tools, tool_config: 7 }, 'choice_none')).toEqual({ contents: [], tools, tool_config: none })
    const other = { retrievalConfig: {} }
    expect(banned({ tools, toolConfig: other }, 'choice_none').toolConfig).toEqual({ ...other, ...none })
    expect(banned({ tools }, 'all_but_forced')).toEqual({ contents: [], tools })
    expect(banned({ tools }, 'all_but_forced', 'read').toolConfig).toEqual({
      functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['read'] },
    })
    const counted = (candidateCount: unknown) =>
      banned({ generationConfig: { candidateCount } }, 'no_tools').generationConfig.candidateCount
    expect([1, 2, 'x'].map(counted)).toEqual([1, 1, 'x'])
  })

  it('demands a format by a schema, or by a type that is JSON', () => {
    const demands = (generationConfig: unknown) => read(JSON.stringify({ contents: [], generationConfig })).demands()
    const schema = { type: 'OBJECT' }
    for (const asked of [{ responseSchema: schema }, { responseJsonSchema: schema }, { response_schema: schema }])
      expect(demands(asked)).toMatchObject({ hasFormat: true, hashes: [expect.anything()] })
    expect(demands({ responseMimeType: 'application/json' }).hasFormat).toBe(true)
    for (const asked of [{ responseSchema: null }, { responseMimeType: 'text/plain' }, { responseMimeType: 7 }, {}, 7])
      expect(demands(asked)).toEqual({ hasFormat: false, hashes: [] })
  })

  it('forces the tools that it allows, all of them if it names none, and none in another mode', () => {
    const forced = (functionCallingConfig: object) => {
      const tools = [{ functionDeclarations: [{ name: 'a' }, { name: 'b' }] }, { googleSearch: {} }]
      return read(JSON.stringify({ contents: [], tools, toolConfig: { functionCallingConfig } })).forcedTools()
    }
    expect(forced({ mode: 'any', allowedFunctionNames: ['a', 7] })).toEqual({ isNamed: true, names: ['a'] })
    expect(forced({ mode: 'ANY', allowedFunctionNames: ['a', 'b'] })).toEqual({ isNamed: false, names: ['a', 'b'] })
    for (const allowedFunctionNames of [[], 'a', undefined])
      expect(forced({ mode: 'ANY', allowedFunctionNames })).toEqual({
        isNamed: false,
        names: ['a', 'b', 'googleSearch'],
      })
    for (const mode of ['AUTO', 'NONE', 7]) expect(forced({ mode })).toEqual({ isNamed: false, names: [] })
  })

  it('is none in a body that is no object, or has something else in place of its contents', () => {
    for (const body of ['[]', '7', '{"contents":7}'])
      expect(gemini.read({ path: PATH, body: Buffer.from(body) })).toBeUndefined()
  })

  it('has no model on another path, and does not ask for a stream there', () => {
    const request = read('{"contents":[]}', '/v1beta/other')
    expect([request.conversation.model, request.conversation.streams, request.isList]).toEqual(['', false, false])
    expect(gemini.modelOf({ path: '/v1beta/other', body: Buffer.from('{"model":"m"}') })).toBeUndefined()
    for (const path of ['/v1/models/m:countTokens', '/v1/m:generateContent', '/v1/models/m:generateContent/x'])
      expect(gemini.claims(path.split('/').slice(1))).toBe(0)
  })

  it('that is too long gets an error of its API, with the numbers that are known', () => {
    const { overflowError } = gemini.api
    const message = (...numbers: Parameters<typeof overflowError>) =>
      (overflowError(...numbers) as { message: string }).message
    const exceeds = 'exceeds the maximum number of tokens allowed'
    expect(message(100, 120)).toBe(`The input token count (120) ${exceeds} (100).`)
    expect(message(undefined, undefined)).toBe(`The input token count ${exceeds}.`)
    expect(overflowError(0, 0)).toMatchObject({ code: 400, status: 'INVALID_ARGUMENT' })
    expect(gemini.api.errorReply({ code: 400 })).toEqual({ error: { code: 400 } })
  })

  it('is sent with a key, or with a token of OAuth', () => {
    expect(gemini.api.credentialHeader('AIza', undefined)).toBe('x-goog-api-key')
    expect(gemini.api.credentialHeader('ya29.a', undefined)).toBe('authorization')
  })

  it('shows each call without an id the result that names its tool, in order, however the tools are mixed', () => {
    const made = fc.array(fc.tuple(fc.constantFrom('read', 'search', 'write'), fc.integer()), {
      minLength: 1,
      maxLength: 8,
    })
    fc.assert(
      fc.property(made, fc.boolean(), fc.boolean(), (calls, hasCallIds, isLost) => {
        const results = calls.map(([name, n]) => ({
          functionResponse: { name, response: { output: `of ${name} ${n}` } },
        }))
        const byTool = results.toSorted((a, b) => a.functionResponse.name.localeCompare(b.functionResponse.name))
        const lost = isLost ? calls.findIndex(([name]) => name === 'write') : -1
        const kept = byTool.filter(({ functionResponse }) => lost === -1 || functionResponse.name !== 'write')
        const parts = calls.map(([name, n], at) => ({
          functionCall: { ...(hasCallIds ? { id: `c${at}` } : {}), name, args: { n } },
        }))
        const contents = [
          { role: 'user', parts: [{ text: 'Go.' }] },
          { role: 'model', parts },
          { role: 'user', parts: kept },
        ]
        const { conversation } = read(JSON.stringify({ contents }))
        const shown = callsAt({ conversation, policy: POLICY, callsByIndex: new Map() }, 1)
        for (const { at, result } of shown) {
          const [name, n] = calls[at] ?? []
          if (shown.length === calls.length)
            expect(result?.text()).toBe(lost !== -1 && name === 'write' ? undefined : `of ${name} ${n}`)
        }
      }),
    )
  })

  it('without a list of contents is not read', () => {
    for (const body of ['', '[]', '{"contents":{"parts":[]}}'])
      expect(gemini.read({ path: PATH, body: Buffer.from(body) })).toBeUndefined()
  })

  it('gets a notice at the end of its last text, and after its results', () => {
    const user = (...parts: object[]) => JSON.stringify({ contents: [{ role: 'user', parts }] })
    const result = { functionResponse: { name: 'read', response: { output: 'x' } } }
    const partsAfter = (body: string) => edited(body, read(body).notice('A notice.', 'auto')).contents[0].parts
    expect(partsAfter(user({ text: 'Go.' }))).toEqual([{ text: 'Go.\n\nA notice.' }])
    expect(partsAfter(user(result, { text: 'Go.' }))).toEqual([result, { text: 'Go.' }, { text: 'A notice.' }])
  })

  it('forces the tool that Governor names, in place of the client’s choice', () => {
    const { toolConfig } = edited(BODY, read(BODY).banTools('all_but_forced', 'write'))
    expect(toolConfig).toEqual({ functionCallingConfig: { mode: 'ANY', allowedFunctionNames: ['write'] } })
  })

  it('goes on after blocked calls, with the message that made them and the reason for each', () => {
    const message = '[{"functionCall":{"id":"a","name":"read","args":{"n":1.0}}}]'
    const calls = [{ id: 'a', name: 'read', arguments: '{"n":1.0}' }]
    const edits = read(BODY).continueAfterBlock([{ buffered: { calls, text: '', message }, results: ['Not run.'] }])
    const text = applyEdits(Buffer.from(BODY), edits ?? []).toString()
    expect(text).toContain(`{"role":"model","parts":${message}}`)
    expect(JSON.parse(text).contents.at(-1)).toEqual({
      role: 'user',
      parts: [{ functionResponse: { id: 'a', name: 'read', response: { error: 'Not run.' } } }],
    })
  })

  it('shows another result where a tool returned another picture', () => {
    const textWith = (data: string) => {
      const parts = [{ inlineData: { mimeType: 'image/png', data } }]
      const functionResponse = { name: 'screen', response: { output: 'done' }, parts }
      const body = JSON.stringify({ contents: [{ role: 'user', parts: [{ functionResponse }] }] })
      return read(body).conversation.results(0)[0]?.text
    }
    expect(textWith('aGk=')).toBe(textWith('aGk='))
    expect(textWith('aGk=')).not.toBe(textWith('aGo='))
  })
})
