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
