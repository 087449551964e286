/** Google's `generateContent` and `streamGenerateContent`, as the Gemini API and Vertex AI implement them. */

import type { Work } from '../../core/bounds/work.ts'
import type { Role } from '../../core/conversation/conversation.ts'
import { propertyOf, textOf } from '../../core/json-object.ts'
import { decodedPath } from '../../core/text/decoded-path.ts'
import { appendElement, appendParagraph, type Edit, removeMembers, setMember } from '../../json/edit.ts'
import { indexList, type ListIndex } from '../../json/list.ts'
import { decode, kindAt, MemberWalk, member, members, type Span } from '../../json/scan.ts'
import type { Api, Dialect, ErrorKind, RequestInput, ToolBan } from '../dialect.ts'
import { dialectMembers } from '../shared/dialect-members.ts'
import {
  type AddText,
  addText,
  conversationOf,
  type ListedItem,
  type Message,
  type MessageForm,
  messagesOf,
  type NamedRole,
  noticeIn,
  offersTools,
  type RequestFields,
  requestMembers,
  roleOf,
  SILENT,
  toolName,
} from '../shared/request.ts'
import { textPart } from './chunk.ts'
import { fieldIn, inSnakeCase, messageOfParts, type PartSpan, partsAt, picturesOf, sizesOf } from './parts.ts'
import { contentsAfterBlock, geminiReplies } from './reply.ts'
import { geminiStream } from './stream.ts'

const ROLES: readonly NamedRole[] = [
  ['user', 'user'],
  ['model', 'assistant'],
  ['function', 'tool'],
]

/** The byte offsets of a content, and what it contains. */
interface ContentItem extends ListedItem {
  /** Where its parts start; 0 if it has none. */
  readonly parts: number
}

type RequestIndex = ListIndex<ContentItem>

/**
 * Reads the role of a content and counts its parts in one pass, without decoding them. A content without a role is the
 * user's.
 */
function readItem(json: Buffer, at: number, work: Work): ContentItem {
  let role: Role = 'user'
  let start = 0
  let parts: readonly PartSpan[] = []
  const field = new MemberWalk(json, at, work)
  while (field.next()) {
    const { value } = field
    if (field.is('parts')) {
      start = value
      ;({ parts, end: field.end } = partsAt(json, value, work))
    } else if (field.is('role')) role = roleOf(json, value, field.skip(), ROLES)
  }
  let callCount = 0
  let resultCount = 0
  for (const { kind } of parts) {
    if (kind === 'call' && role === 'assistant') callCount++
    else if (kind === 'result' && role !== 'assistant') resultCount++
  }
  return { start: at, end: field.end, role, callCount, resultCount, parts: start }
}

/** Returns a field within an object of the request, each name in either spelling; `undefined` if there is none. */
function valueIn(
  { json, fields }: Pick<RequestIndex, 'json' | 'fields'>,
  ...path: readonly string[]
): Span | undefined {
  let inner = fields
  let value: Span | undefined
  for (const name of path) {
    value = fieldIn(inner, name)?.value
    inner = value && kindAt(json, value) === 'object' ? members(json, value) : []
  }
  return value
}

const GENERATION = 'generationConfig'
const SCHEMAS = ['responseSchema', 'responseJsonSchema']
const CHOICE = ['toolConfig', 'functionCallingConfig'] as const

/** The keys of the list of functions in a tool. */
const DECLARATIONS = ['functionDeclarations', 'function_declarations']

const FIELDS: RequestFields = {
  formatIn(index) {
    for (const name of SCHEMAS) {
      const schema = valueIn(index, GENERATION, name)
      if (schema && kindAt(index.json, schema) === 'object') return schema
    }
    const type = valueIn(index, GENERATION, 'responseMimeType')
    return type && textOf(decode(index.json, type)).includes('json') ? type : undefined
  },
  system: ['systemInstruction', 'system_instruction'],
  tools: ['tools'],
  choices: ['toolConfig', 'tool_config'],
  nested: DECLARATIONS,
  // A provider's own tool is named by its key.
  nameOf: (tool) => toolName(tool) || (Object.keys(tool ?? {}).find((key) => !DECLARATIONS.includes(key)) ?? ''),
  forcedBy(choice) {
    const config = propertyOf(choice, CHOICE[1]) ?? propertyOf(choice, inSnakeCase(CHOICE[1]))
    if (textOf(propertyOf(config, 'mode')).toUpperCase() !== 'ANY') return undefined
    const allowed = propertyOf(config, 'allowedFunctionNames') ?? propertyOf(config, 'allowed_function_names')
    const names = Array.isArray(allowed) ? allowed.filter((name) => typeof name === 'string') : []
    return names.length === 0 ? { isNamed: false } : { isNamed: names.length === 1, names }
  },
}

/** Decodes a message, which may be an answer in several contents, or with -1 the system text. */
function* messageOf(index: RequestIndex, at: number, messages: readonly MessageForm[]): Generator<void, Message> {
  const { json, items, work } = index
  if (messages[at]?.role === 'part') return SILENT
  if (at === -1) {
    const parts = valueIn(index, 'systemInstruction', 'parts')
    return parts ? yield* messageOfParts(json, partsAt(json, parts.start, work).parts, work) : SILENT
  }
  const parts: PartSpan[] = []
  let next = at
  do {
    const { parts: start = 0 } = items[next] ?? {}
    if (start > 0) parts.push(...partsAt(json, start, work).parts)
    next++
  } while (messages[next]?.role === 'part')
  return yield* messageOfParts(json, parts, work)
}

/** Appends a text to parts: as a paragraph of the last one, or as a new one after results and other parts. */
function addToParts(json: Buffer, parts: Span, text: string, hasResults: boolean): Edit | undefined {
  const kind = kindAt(json, parts)
  if (kind === 'array') return hasResults ? appendElement(json, parts, textPart(text)) : addText(json, parts, text, {})
  if (kind !== 'object') return undefined
  const said = member(members(json, parts), 'text')?.value
  if (said && kindAt(json, said) === 'string') return appendParagraph(said, text)
  return { ...parts, text: `[${json.toString('utf8', parts.start, parts.end)},${textPart(text)}]` }
}

const contentOf = (role: string, text: string) => ({ role, parts: [{ text }] })

const TOOL_FIELDS = new Set(['tools', 'toolConfig', 'tool_config'])

function choiceEdits({ json, object, fields }: RequestIndex, config: string): Edit[] {
  // Providers refuse a choice without tools.
  if (!member(fields, 'tools')) return []
  const choice = fieldIn(fields, CHOICE[0])
  if (!choice || kindAt(json, choice.value) !== 'object')
    return [setMember(object, fields, choice?.key ?? CHOICE[0], `{"${CHOICE[1]}":${config}}`)]
  const inner = members(json, choice.value)
  return [setMember(choice.value, inner, fieldIn(inner, CHOICE[1])?.key ?? CHOICE[1], config)]
}

/** Returns edits that forbid calls of tools, or all but those of one tool. */
function bannedTools(index: RequestIndex, ban: ToolBan, forced: string | undefined): Edit[] {
  const { json, fields } = index
  const edits = ban === 'no_tools' ? removeMembers(fields, TOOL_FIELDS) : []
  // Of several candidates, none would be the final answer.
  const count = valueIn(index, GENERATION, 'candidateCount')
  if (count && Number(json.toString('latin1', count.start, count.end)) > 1) edits.push({ ...count, text: '1' })
  if (ban === 'choice_none') edits.push(...choiceEdits(index, '{"mode":"NONE"}'))
  if (forced !== undefined)
    edits.push(...choiceEdits(index, JSON.stringify({ mode: 'ANY', allowedFunctionNames: [forced] })))
  return edits
}

/** What stands before a model: a tuned one has a place of its own, and on Vertex AI an endpoint. */
const HOLDERS: ReadonlySet<string | undefined> = new Set(['models', 'tunedModels', 'endpoints'])

const MODEL = /\/([^/]*):(generateContent|streamGenerateContent)$/

const modelOf = ({ path }: RequestInput): string => MODEL.exec(decodedPath(path))?.[1] ?? ''

const read: Dialect['read'] = (input) => {
  const { path, query = '', body, known } = input
  const index = indexList(body, 'contents', readItem, known)
  if (!index) return undefined
  const { json, object, fields, list, items, work } = index
  const streams = MODEL.exec(decodedPath(path))?.[2] === 'streamGenerateContent'
  const isEvents = streams && new URLSearchParams(query).get('alt') === 'sse'
  // The provider refuses system text and tools beside a cached prompt, which may hold them.
  const isCached = fieldIn(fields, 'cachedContent') !== undefined
  const conversation = conversationOf(
    index,
    messageOf,
    {
      model: modelOf(input),
      streams: isEvents,
      // SDKs send each event of a streamed answer as a content of its own.
      hasParts: true,
      offersTools: offersTools(index, FIELDS) || isCached,
      resultSizes(at) {
        const { resultCount = 0, parts: start = 0 } = items[at] ?? {}
        return resultCount > 0 ? sizesOf(json, partsAt(json, start).parts) : []
      },
      pictures(at) {
        const { role, parts: start = 0 } = items[at] ?? {}
        return role === 'user' && start > 0 ? picturesOf(json, partsAt(json, start, work).parts, work) : []
      },
    },
    messagesOf(items),
  )
  const add: AddText = (at, text) => {
    const content = items[at]
    if (!content) return undefined
    const inner = members(json, content)
    const parts = member(inner, 'parts')?.value
    if (!parts) return setMember(content, inner, 'parts', `[${textPart(text)}]`)
    return addToParts(json, parts, text, content.resultCount > 0)
  }
  return {
    conversation,
    isList: streams && !isEvents,
    notice: (text, channel) => (channel === 'system' ? undefined : noticeIn(index, text, channel, add, contentOf)),
    announce(text) {
      if (isCached) return []
      const parts = valueIn(index, 'systemInstruction', 'parts')
      const edit = parts && addToParts(json, parts, text, false)
      const name = fieldIn(fields, 'systemInstruction')?.key ?? 'systemInstruction'
      return [edit ?? setMember(object, fields, name, `{"parts":[${textPart(text)}]}`)]
    },
    banTools: (ban, forced) => bannedTools(index, ban, forced),
    continueAfterBlock: (blocked) =>
      blocked.flatMap(contentsAfterBlock).map((content) => appendElement(json, list, content)),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, conversation, FIELDS, add),
  }
}

const STATUSES: Readonly<Record<ErrorKind, string>> = {
  invalid_request: 'INVALID_ARGUMENT',
  unauthorized: 'UNAUTHENTICATED',
  forbidden: 'PERMISSION_DENIED',
  not_found: 'NOT_FOUND',
  timeout: 'DEADLINE_EXCEEDED',
  overloaded: 'UNAVAILABLE',
  provider_down: 'UNAVAILABLE',
  no_response: 'UNAVAILABLE',
}

export const google: Api = {
  upstream: {
    name: 'gemini',
    url: 'https://generativelanguage.googleapis.com',
    variable: 'GEMINI_UPSTREAM_URL',
    clientVariable: 'GOOGLE_GEMINI_BASE_URL',
    models: '/v1beta/models',
    provider: 'gcp.gemini',
    operation: 'generate_content',
  },
  // Not Google's form of OpenAI's API.
  ownPaths: /^\/(?:upload\/|download\/)?v1(?:alpha|beta\d*)\/(?!openai(?:\/|$))|^\/v1\/models\/[^/]*:/,
  ownHeader: 'x-goog-api-client',
  credentialHeaders: ['authorization', 'x-goog-api-key'],
  credentialParameters: ['key', 'access_token'],
  // Tokens of OAuth begin so.
  credentialHeader: (key) => (key.startsWith('ya29.') ? 'authorization' : 'x-goog-api-key'),
  errorBody: (kind, message, _code, status) =>
    JSON.stringify({ error: { code: status, message, status: STATUSES[kind] } }),
  errorReply: (error) => ({ error }),
  overflowError(limit, promptTokens) {
    const numbers = (of: number | undefined) => (of === undefined ? '' : ` (${of})`)
    const message =
      `The input token count${numbers(promptTokens)} exceeds the maximum number of tokens ` +
      `allowed${numbers(limit)}.`
    return { code: 400, message, status: 'INVALID_ARGUMENT' }
  },
}

export const gemini: Dialect = {
  ...dialectMembers(geminiStream),
  ...geminiReplies,
  name: 'gemini',
  api: google,
  claims: (segments) => (HOLDERS.has(segments.at(-2)) && MODEL.test(`/${segments.at(-1)}`) ? 2 : 0),
  read,
  modelOf: (input) => modelOf(input) || undefined,
}
