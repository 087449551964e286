/** What can be said of requests and responses that are too large to be read, in every API. */
import { describe, expect, it } from 'vitest'
import { chat } from '../../src/dialect/chat/index.ts'
import { gemini } from '../../src/dialect/gemini/index.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'
import { EDGE_BYTES, outlineOf } from '../../src/dialect/shared/outline.ts'
import { readText } from '../../src/dialect/shared/response-tail.ts'
import { classify, statedNumbers } from '../../src/overflow/index.ts'
import { completion } from '../support/provider.ts'

describe.each([
  ['Chat Completions', chat],
  ['Messages', messages],
  ['Responses', responses],
  ['Gemini', gemini],
])('the error of %s for a prompt that is too large', (_, { api }) => {
  const stated = (limit?: number, promptTokens?: number) => {
    const body = JSON.stringify(api.errorReply(api.overflowError(limit, promptTokens)))
    expect(body).not.toContain('undefined')
    const found = classify({ status: 400, body })
    return found && statedNumbers(found.overflow)
  }

  it('states the numbers that are known, and is recognised without them', () => {
    expect(stated(1_000, 1_200)).toMatchObject({ limit: 1_000, promptTokens: 1_200 })
    expect(stated()).toEqual({ limit: undefined, promptTokens: undefined, maxOutput: undefined, overflowBy: undefined })
    expect(stated(1_000)?.limit ?? 1_000).toBe(1_000)
  })
})

describe('a body of which only the ends are read', () => {
  const outline = (edges: string | Buffer) => outlineOf(chat, { path: '/v1/chat/completions', query: '' }, edges)
  const long = `"messages":[{"role":"user","content":"${'x'.repeat(3 * EDGE_BYTES)}"}]`

  it.each([
    [`{"model":"m","stream":true,${long}}`, 'm', true],
    [`{${long},"model":"m","stream":true}`, 'm', true],
    [`{"model":"m",${long},"stream" : false}`, 'm', false],
    [`{"stream":false,"model":"m",${long},"stream":true}`, 'm', true],
    [`{${long.replace('"}]', '\\"model\\":\\"m\\"')}`, '', false],
  ])('shows its model and whether its client reads a stream, wherever they stand: %#', (body, model, streams) => {
    expect(outline(Buffer.from(body))?.conversation).toMatchObject({ model, streams })
  })

  it('shows no more than its ends: what stands in its middle is not known', () => {
    const body = `{"n":"${'x'.repeat(EDGE_BYTES)}","model":"m","n":"${'x'.repeat(EDGE_BYTES)}"}`
    expect(outline(Buffer.from(body))?.conversation).toMatchObject({ model: '', streams: false })
    expect(outline(body)?.conversation.model).toBe('m')
  })
})

describe('the text of a response that is relayed', () => {
  const said = (streams: boolean, ...chunks: readonly string[]) => {
    const text = readText(chat, streams)
    for (const chunk of chunks) text.push(Buffer.from(chunk))
    return text.end()
  }
  const chunk = (content: string) => `data: {"choices":[{"index":0,"delta":{"content":"${content}"}}]}\n\n`
  const comment = `: ${'x'.repeat(1_048_574)}`

  it('is read of a whole body with blank lines in it', () => {
    const body = JSON.stringify(completion({ model: 'm', messages: [] }, { text: 'It is 42.' }, 1), undefined, 1)
    expect(said(false, body.replaceAll('\n', '\n\n'))).toBe('It is 42.')
  })

  it('is not known of a whole body of more than a mebibyte', () => {
    const body = JSON.stringify(completion({ model: 'm', messages: [] }, { text: 'It is 42.' }, 1))
    expect(said(false, body, ' '.repeat(1_048_576 - body.length))).toBe('It is 42.')
    expect(said(false, body, ' '.repeat(1_048_577 - body.length))).toBeUndefined()
  })

  it('is that of the first eight mebibytes of a stream', () => {
    const comments = Array.from({ length: 7 }, () => `${comment}\n\n`)
    expect(said(true, chunk('one '), ...comments, chunk('two'))).toBe('one two')
    expect(said(true, chunk('one '), ...comments, `${comment}\n\n`, chunk('two'))).toBe('one ')
  })
})

describe('the id of a response', () => {
  it.each([
    ['{"usage":{"id":7},"id":"x"}', 'x'],
    ['{"id":null,"message":{"id":"x"},"id":"y"}', 'x'],
    ['{"text":"\\"id\\":\\"no\\"","id":"x"}', 'x'],
    ['{"id":7}', undefined],
  ])('is the first text with that name: %s', (body, id) => {
    expect(messages.responseId?.(Buffer.from(body))).toBe(id)
  })
})
