/** A dialect of an API that Governor does not know: its model is in the path, as in Gemini's. It has no streams. */
import type { Conversation, Role } from '../../src/core/conversation/conversation.ts'
import { isObject, type Json, objectsOf, parseObject, textOf } from '../../src/core/json-object.ts'
import type { Api, Dialect, DialectRequest, RequestInput } from '../../src/dialect/dialect.ts'
import { openai } from '../../src/dialect/openai/api.ts'
import { appendElement, applyEdits, type Edit, removeMembers, setMember } from '../../src/json/edit.ts'
import { decode, elements, member, members, root, type Span } from '../../src/json/scan.ts'

const api: Api = {
  upstream: openai.upstream,
  credentialHeaders: ['x-toy-key'],
  credentialParameters: [],
  credentialHeader: () => 'x-toy-key',
  errorBody: (kind, message) => JSON.stringify({ error: { status: kind.toUpperCase(), message } }),
  errorReply: (error) => ({ error }),
  overflowError: () => ({ status: 'INVALID_ARGUMENT' }),
}

const modelIn = (path: string): string => /([^/]*):ask$/.exec(path)?.[1] ?? ''
const callsIn = (parts: readonly Json[]) =>
  parts
    .map(({ functionCall }) => functionCall)
    .filter(isObject)
    .map(({ id, name, args }) => ({ id: textOf(id), name: textOf(name), arguments: JSON.stringify(args) }))
const resultsIn = (parts: readonly Json[]) =>
  parts
    .map(({ functionResponse }) => functionResponse)
    .filter(isObject)
    .map(({ id, response }) => ({ callId: textOf(id), text: JSON.stringify(response) }))
const textsIn = (parts: readonly Json[]) => parts.flatMap(({ text }) => (typeof text === 'string' ? [text] : []))

function conversationOf(model: string, contents: readonly Json[], offersTools: boolean): Conversation {
  const parts = (at: number): Json[] => objectsOf(contents[at]?.['parts'])
  const role = (at: number): Role => {
    if (contents[at]?.['role'] === 'model') return 'assistant'
    return resultsIn(parts(at)).length > 0 ? 'tool' : 'user'
  }
  return {
    model,
    streams: false,
    offersTools,
    systemText: () => '',
    length: contents.length,
    role,
    texts: (at) => textsIn(parts(at)),
    calls: (at) => callsIn(parts(at)),
    results: (at) => resultsIn(parts(at)),
    forget: () => undefined,
    callCount: (at) => callsIn(parts(at)).length,
    resultCount: (at) => resultsIn(parts(at)).length,
  }
}

function noticeIn(json: Buffer, contents: Span, text: string): Edit[] | undefined {
  const last = elements(json, contents).at(-1)
  const parts = last && member(members(json, last), 'parts')?.value
  return parts && [appendElement(json, parts, JSON.stringify({ text }))]
}

function read({ path, body }: RequestInput): DialectRequest | undefined {
  const fields = members(body, root(body))
  const contents = member(fields, 'contents')?.value
  if (!contents) return undefined
  return {
    conversation: conversationOf(
      modelIn(path),
      objectsOf(decode(body, contents)),
      member(fields, 'tools') !== undefined,
    ),
    sessionIdAt: () => undefined,
    demands: () => ({ hashes: [], hasFormat: false }),
    forcedTools: () => ({ names: [], isNamed: false }),
    dropTools: () => [],
    collapseRepeats: () => [],
    notice: (text) => noticeIn(body, contents, text),
    announce: () => [],
    banTools: () => removeMembers(fields, new Set(['tools'])),
    continueAfterBlock: () => undefined,
  }
}

function partsOf(answer: Json): Json[] {
  const content = objectsOf(answer['candidates'])[0]?.['content']
  return isObject(content) ? objectsOf(content['parts']) : []
}

function answerText(text: string, governor: object): Buffer {
  const candidates = [{ content: { role: 'model', parts: [{ text }] }, finishReason: 'STOP' }]
  return Buffer.from(JSON.stringify({ candidates, governor }))
}

function noStreams(): never {
  throw new Error('the toy API has no streams')
}

export const toy: Dialect = {
  name: 'toy',
  api,
  claims: (segments) => (segments.at(-1)?.endsWith(':ask') === true ? 2 : 0),
  read,
  modelOf: ({ path }) => modelIn(path),
  writtenCharacters: (bytes) => bytes.length,
  metadata: () => ({}),
  callsNothing: () => false,
  readAnswer(body) {
    const answer = parseObject(body.toString())
    const parts = answer && partsOf(answer)
    return parts && { text: textsIn(parts).join(''), calls: callsIn(parts), end: 'complete' }
  },
  writeAnswer(body, { terminal, text, dropCalls }) {
    const answer = parseObject(body.toString()) ?? {}
    if (text !== undefined || (dropCalls && callsIn(partsOf(answer)).length > 0)) {
      return answerText(text ?? textsIn(partsOf(answer)).join(''), terminal)
    }
    const object = root(body)
    const edit = setMember(object, members(body, object), 'governor', JSON.stringify(terminal))
    return applyEdits(body, [edit])
  },
  openStream: noStreams,
  openFilter: noStreams,
  openText: noStreams,
  withoutCalls: (body) => body,
  reply: ({ text, terminal }) => ({ contentType: 'application/json', body: answerText(text, terminal) }),
}
