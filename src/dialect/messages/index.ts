/** Anthropic's Messages, as Anthropic and the providers with the same API implement it. */

import type { Work } from '../../core/bounds/work.ts'
import type { Conversation, Role, TaskBudget } from '../../core/conversation/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import { nameOf } from '../../core/hash.ts'
import { isObject, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { decodedPath } from '../../core/text/decoded-path.ts'
import { decodeInTurns } from '../../json/compare.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import { indexList, type ListIndex } from '../../json/list.ts'
import { decode, elements, kindAt, MemberWalk, member, members, root } from '../../json/scan.ts'
import type { Api, BlockedMessage, Dialect, ErrorKind, RequestInput, StoredHistory, ToolBan } from '../dialect.ts'
import { BETA_HEADER, dialectMembers } from '../shared/dialect-members.ts'
import {
  type AddText,
  addText,
  conversationOf,
  fieldOf,
  formatIn,
  type ListedItem,
  type Message,
  type NamedRole,
  namesIn,
  noticeIn,
  offersTools,
  type RequestFields,
  requestMembers,
  resultsToKeep,
  roleOf,
  SILENT,
  stringIn,
  toolName,
} from '../shared/request.ts'
import { firstText } from '../shared/response-tail.ts'
import {
  beginsWithBilling,
  type Content,
  contentAt,
  countOf,
  idsRunByProvider,
  isRunByProvider,
  picturesOf,
  resultsOf,
  sizesOf,
  systemTextOf,
  takesResultsOnly,
  textsAndCallsOf,
} from './content.ts'
import { messagesAfterBlock, messagesReplies, resultMessage, resultsOfBlocked } from './reply.ts'
import { messagesStream } from './stream.ts'

const ROLES: readonly NamedRole[] = [
  ['user', 'user'],
  ['assistant', 'assistant'],
]

/** The byte offsets of a message, and what it contains. */
interface MessageItem extends ListedItem {
  /** Where its content starts; 0 if it has none. */
  readonly content: number
  /** It contains calls that the provider made itself. */
  readonly hasProviderCalls: boolean
  /** It offers tools from there on. */
  readonly addsTools: boolean
}

type RequestIndex = ListIndex<MessageItem>

/** Reads the role of a message and counts its blocks in one pass, without decoding them. */
function readItem(json: Buffer, at: number, work: Work): MessageItem {
  let role: Role = 'system'
  let content: Content | undefined
  const field = new MemberWalk(json, at, work)
  while (field.next()) {
    const { value } = field
    if (field.is('content')) {
      content = contentAt(json, value, work)
      field.end = content.value?.end ?? value
    } else if (field.is('role')) role = roleOf(json, value, field.skip(), ROLES)
  }
  return {
    start: at,
    end: field.end,
    role,
    content: content?.value?.start ?? 0,
    callCount: content && role === 'assistant' ? countOf(content, 'tool_use') : 0,
    resultCount: content && role === 'user' ? countOf(content, 'tool_result') : 0,
    hasProviderCalls: role === 'assistant' && content?.blocks.some(isRunByProvider) === true,
    addsTools: role !== 'assistant' && content?.blocks.some(({ type }) => type === 'tool_addition') === true,
  }
}

const FIELDS: RequestFields = {
  // The second one is an older form.
  formatIn: (index) => formatIn(index, ['output_config', 'format'], ['output_format']),
  system: ['system'],
  tools: ['tools'],
  choices: ['tool_choice'],
  nested: ['tools'],
  nameOf: (tool) => toolName(tool),
  forcedBy(choice) {
    if (!isObject(choice) || choice['type'] === 'auto' || choice['type'] === 'none') return undefined
    return choice['type'] === 'any' ? { isNamed: false } : { isNamed: true, names: namesIn(choice) }
  },
}

/**
 * Returns the client's budget for one task. Source: platform.claude.com/docs/en/build-with-claude/task-budgets.
 * The field is rare, so it is looked for before the settings around it are decoded.
 */
function taskBudgetIn(index: RequestIndex): TaskBudget | undefined {
  const settings = member(index.fields, 'output_config')?.value
  if (!settings || !index.json.subarray(settings.start, settings.end).includes('"task_budget"')) return undefined
  const budget = propertyOf(fieldOf(index, 'output_config'), 'task_budget')
  const { total, remaining } = isObject(budget) ? budget : {}
  if (typeof total !== 'number' || !(total > 0)) return undefined
  return { total, spent: typeof remaining === 'number' ? Math.max(0, total - remaining) : 0 }
}

const CACHE = 'cache_control'

/** The API refuses MCP servers without the tools that name them. A prompt without tools is in no cache. */
const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'mcp_servers', CACHE])

/** Returns edits that make a thread continue from the response `id`; none if the request continues no response. */
function redirected({ json, fields }: RequestIndex, id: string | undefined): Edit[] {
  const thread = member(fields, 'thread')?.value
  const place = thread && member(members(json, thread), 'previous_message_id')?.value
  return id === undefined || !place ? [] : [{ ...place, text: JSON.stringify(id) }]
}

/**
 * Returns the thread of a request, which the provider stores; it continues from `previous` with results only. Source:
 * platform.claude.com/docs/en/build-with-claude/message-threads
 */
function threadOf(index: RequestIndex, contentOf: (at: number) => Content): StoredHistory | undefined {
  const { json, items, fields, list } = index
  const thread = fieldOf(index, 'thread')
  if (!isObject(thread)) return undefined
  const previous = (thread['type'] === 'continue' && textOf(thread['previous_message_id'])) || undefined
  return {
    previous,
    isConversation: false,
    hasOneEnd: true,
    injectPendingResults(pendingResults, redirectTo) {
      if (previous === undefined) return []
      const edits = redirected(index, redirectTo)
      if (pendingResults.length === 0) return edits
      // They go to the other results of the same response; the API demands that results come first in a message.
      const [first] = contentOf(items.findIndex(({ resultCount }) => resultCount > 0)).blocks
      const results = pendingResults.join(',')
      if (first) edits.push({ start: first.start, end: first.start, text: `${results},` })
      else if (member(fields, 'messages'))
        edits.push(prependElement(json, list, `{"role":"user","content":[${results}]}`))
      return edits
    },
    skippedResults(unique) {
      if (previous === undefined) return undefined
      const results = items.flatMap((_, at) => contentOf(at).blocks.filter(({ type }) => type === 'tool_result'))
      const pendingResults = resultsToKeep(json, results, 'content', ['string', 'array'])
      return { id: `msg_${unique}`, pendingResults, redirectTo: previous }
    },
  }
}

/** Returns edits for a notice; automatic caching marks the last block, which must stay the client's own. */
function noticeBehindCache(
  index: RequestIndex,
  contentOf: (at: number) => Content,
  text: string,
  channel: Channel,
  add: AddText,
): Edit[] | undefined {
  const { json, fields, items } = index
  const notice = noticeIn(index, text, channel, add)
  const marker = member(fields, CACHE)?.value
  const isSuffix = channel !== 'user'
  const at = isSuffix ? items.findLastIndex(({ role }) => role === 'user') : items.length - 1
  const { value, blocks } = contentOf(at)
  if (!notice || !value || !marker || kindAt(json, marker) !== 'object') return notice
  const setting = json.toString('utf8', marker.start, marker.end)
  const removed = removeMembers(fields, new Set([CACHE]))
  const added = isSuffix ? [JSON.stringify({ type: 'text', text })] : []
  // The API refuses a marker on an empty text, too.
  if (kindAt(json, value) === 'string' && value.end - value.start > 2) {
    const own = `{"type":"text","text":${json.toString('utf8', value.start, value.end)},"${CACHE}":${setting}}`
    return [...removed, { ...value, text: `[${[own, ...added].join(',')}]` }, ...(isSuffix ? [] : notice)]
  }
  // The API refuses a marker on reasoning.
  const last = blocks.findLast(({ type }) => type !== '' && !type.endsWith('thinking'))
  if (!last) return notice
  const parts = members(json, last)
  const pinned = member(parts, CACHE) ? [] : [setMember(last, parts, CACHE, setting)]
  return [...removed, ...pinned, ...(isSuffix ? added.map((block) => appendElement(json, value, block)) : notice)]
}

/** Adds a text to the system text, or to the first user message if the system text must stay as it is. */
function announceIn(index: RequestIndex, add: AddText, text: string): Edit[] {
  const { json, object, fields, items } = index
  if (beginsWithBilling(fieldOf(index, 'system'))) {
    const first = items.findIndex(({ role }) => role === 'user')
    const edit = add(first, text)
    return edit ? [edit] : []
  }
  const system = member(fields, 'system')?.value
  const edit = system && addText(json, system, text)
  return [edit ?? setMember(object, fields, 'system', JSON.stringify(text))]
}

function* systemOf({ json, fields, work }: RequestIndex): Generator<void, Message> {
  const system = member(fields, 'system')?.value
  return system ? { ...SILENT, texts: [systemTextOf(yield* decodeInTurns(json, system, work))] } : SILENT
}

/** Returns where the blocks of a message are. `contents`: those that were looked for before. */
function contentIn({ json, items, work }: RequestIndex, contents: Map<number, Content>, at: number): Content {
  const indexed = contents.get(at)
  if (indexed) return indexed
  const start = items[at]?.content ?? 0
  const content = start > 0 ? contentAt(json, start, work) : { json, work, value: undefined, blocks: [] }
  contents.set(at, content)
  return content
}

/** Appends blocked messages and their results to the input; in a thread, only the results of the last one. */
function continuedAfter(index: RequestIndex, blocked: readonly BlockedMessage[], isThread: boolean) {
  const { json, list } = index
  if (!isThread) return blocked.flatMap(messagesAfterBlock).map((message) => appendElement(json, list, message))
  const last = blocked.at(-1)
  const edits = redirected(index, last?.buffered.id)
  return last && edits.length > 0 ? [...edits, { ...list, text: `[${resultMessage(last)}]` }] : undefined
}

/**
 * Returns the name of the provider's own summary that a history begins with; `undefined` if it begins with another
 * message.
 */
function summaryIn(json: Buffer, first: MessageItem | undefined, contentOf: (at: number) => Content) {
  // Text of the model can't match: its quotes are escaped.
  if (first?.role !== 'assistant' || !json.subarray(first.start, first.end).includes('"compaction"')) return undefined
  const block = contentOf(0).blocks.findLast(({ type }) => type === 'compaction')
  return block && nameOf(stringIn(json, members(json, block), 'content'))
}

/** Returns the first call that the provider made in the first answer: that response may have paused. */
function firstRun(items: readonly MessageItem[], contentOf: (at: number) => Content): string | undefined {
  const first = items.findIndex(({ role }) => role === 'assistant')
  return items[first]?.hasProviderCalls ? idsRunByProvider(contentOf(first))[0] : undefined
}

/** Returns whether there is reasoning in the newest answer, or will be in the answer to this request. */
function bindsReasoning(index: RequestIndex, contentOf: (at: number) => Content): boolean {
  const thinking = fieldOf(index, 'thinking')
  if (isObject(thinking)) return thinking['type'] !== 'disabled'
  const { blocks } = contentOf(index.items.findLastIndex(({ role }) => role === 'assistant'))
  return blocks.some(({ type }) => type === 'thinking')
}

/** Returns whether messages offer tools: they may define tools that no field lists. */
function addsTools({ items }: RequestIndex): boolean {
  return items.some((item) => item.addsTools)
}

/** True if a request names MCP servers: with an older beta the model gets all their tools, which no field lists. */
function namesServers({ json, fields }: RequestIndex): boolean {
  const list = member(fields, 'mcp_servers')?.value
  return list !== undefined && kindAt(json, list) === 'array' && elements(json, list).length > 0
}

const PAUSE = 'pause_after_compaction'

/** Returns edits with which no compaction of the provider ends an answer before its text. */
function withoutPauses({ json, fields }: RequestIndex): Edit[] {
  const settings = member(fields, 'context_management')?.value
  if (!settings || !json.subarray(settings.start, settings.end).includes(`"${PAUSE}"`)) return []
  const list = kindAt(json, settings) === 'object' ? member(members(json, settings), 'edits')?.value : undefined
  const all = list && kindAt(json, list) === 'array' ? elements(json, list) : []
  const ofObjects = all.flatMap((edit) => (kindAt(json, edit) === 'object' ? members(json, edit) : []))
  const pauses = ofObjects.filter(({ key, value }) => key === PAUSE && decode(json, value) === true)
  return pauses.map(({ value }) => ({ ...value, text: 'false' }))
}

/** Returns edits that forbid calls of tools, or all but those of one tool. The tools of a thread are stored. */
function bannedTools(index: RequestIndex, ban: ToolBan, forced: string | undefined, isThread: boolean): Edit[] {
  const { object, fields } = index
  if (ban === 'no_tools' && !isThread) return [...removeMembers(fields, TOOL_FIELDS), ...withoutPauses(index)]
  const isForced = ban === 'all_but_forced'
  // Providers refuse a tool_choice without tools.
  const mayChoose = isForced ? forced !== undefined : isThread || member(fields, 'tools') || addsTools(index)
  const choice = JSON.stringify(isForced ? { type: 'tool', name: forced } : { type: 'none' })
  return [...(mayChoose ? [setMember(object, fields, 'tool_choice', choice)] : []), ...withoutPauses(index)]
}

/** A path of Vertex AI that names a model; `count-tokens` stands in the same place and names none. */
const VERTEX = /\/publishers\/+anthropic\/+models\/+(?!count-tokens:)([^/]+):(?:rawPredict|streamRawPredict)\/*$/

const modelInPath = ({ path }: RequestInput) => VERTEX.exec(decodedPath(path))?.[1]

/** Returns what appends a text to a message; `takesNoText`: true if what stands before the message forbids it. */
function addIn(
  { json, items }: RequestIndex,
  contentOf: (at: number) => Content,
  takesNoText: (at: number) => boolean,
): AddText {
  return (at, text) => {
    const message = items[at]
    const { value } = contentOf(at)
    if (!message || takesNoText(at)) return undefined
    if (!value) return setMember(message, members(json, message), 'content', JSON.stringify(text))
    if (message.resultCount > 0) return appendElement(json, value, JSON.stringify({ type: 'text', text }))
    return addText(json, value, text)
  }
}

const read: Dialect['read'] = (input) => {
  const { body, known } = input
  const index = indexList(body, 'messages', readItem, known)
  if (!index) return undefined
  const { json, items } = index
  const contents = new Map<number, Content>()
  const contentOf = (at: number) => contentIn(index, contents, at)
  const stored = threadOf(index, contentOf)
  const previous = stored?.previous
  const summary = summaryIn(json, items[0], contentOf)
  const model = modelInPath(input)
  const conversation: Conversation = conversationOf(
    index,
    (_index, at) => (at === -1 ? systemOf(index) : textsAndCallsOf(contentOf(at))),
    {
      // The provider stores the tools that a thread began with.
      offersTools: offersTools(index, FIELDS) || previous !== undefined || addsTools(index) || namesServers(index),
      // Messages of role `system` do not begin a conversation of this API.
      systemText: () => conversation.texts(-1).join(''),
      resultSizes: (at) => (items[at]?.resultCount ? sizesOf(contentOf(at)) : []),
      results: (at) => (items[at]?.resultCount ? resultsOf(contentOf(at)) : []),
      ranByProvider: (at) => (items[at]?.hasProviderCalls ? idsRunByProvider(contentOf(at)) : []),
      isCompaction: isObject(fieldOf(index, 'compaction')),
      isCompacted: summary !== undefined,
      taskBudget: taskBudgetIn(index),
      pictures: (at) => (items[at]?.role === 'user' ? picturesOf(contentOf(at)) : []),
      ...(model === undefined ? {} : { model }),
    },
    items,
    contents,
  )
  /** True if what follows the newest answer before `end` may hold results alone. */
  const takesNoText = (end: number) =>
    takesResultsOnly(contentOf(items.slice(0, end).findLastIndex(({ role }) => role === 'assistant')))
  const add = addIn(index, contentOf, takesNoText)
  return {
    stored,
    storesAnswer: stored !== undefined,
    ...(stored ? { resultsOf: resultsOfBlocked } : {}),
    firstItem: previous === undefined ? (summary ?? firstRun(items, contentOf)) : undefined,
    bindsReasoning: () => bindsReasoning(index, contentOf),
    conversation,
    // Most models refuse a message of role `system`; the API merges consecutive user messages.
    notice: (text, channel) =>
      channel === 'system' || takesNoText(items.length)
        ? undefined
        : noticeBehindCache(index, contentOf, text, channel, add),
    announce: (text) => (previous === undefined ? announceIn(index, add, text) : []),
    banTools: (ban, forced) => bannedTools(index, ban, forced, previous !== undefined),
    continueAfterBlock: (blocked) => continuedAfter(index, blocked, previous !== undefined),
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, conversation, FIELDS, add),
  }
}

const ERROR_TYPES: Readonly<Record<ErrorKind, string>> = {
  invalid_request: 'invalid_request_error',
  unauthorized: 'authentication_error',
  forbidden: 'permission_error',
  not_found: 'not_found_error',
  timeout: 'timeout_error',
  overloaded: 'overloaded_error',
  provider_down: 'api_error',
  no_response: 'api_error',
}

export const anthropic: Api = {
  upstream: {
    name: 'anthropic',
    url: 'https://api.anthropic.com',
    variable: 'ANTHROPIC_UPSTREAM_URL',
    clientVariable: 'ANTHROPIC_BASE_URL',
    models: '/v1/models',
    provider: 'anthropic',
    operation: 'chat',
  },
  // Paths like `threads/ID/messages` belong to the Assistants API.
  ownPaths: /^\/v1\/messages(?:\/|$)/,
  ownHeader: 'anthropic-version',
  credentialHeaders: ['authorization', 'x-api-key'],
  credentialParameters: [],
  credentialHeader(key, sent) {
    // Anthropic and Google accept each of their own kinds of keys in one header only.
    if (/^(?:sk-ant-oat|ya29\.)/.test(key)) return 'authorization'
    return key.startsWith('sk-ant-') ? 'x-api-key' : (sent ?? 'x-api-key')
  },
  errorBody: (kind, message) => JSON.stringify({ type: 'error', error: { type: ERROR_TYPES[kind], message } }),
  errorReply: (error) => ({ type: 'error', error }),
  overflowError(limit, promptTokens) {
    // Clients parse the numbers in the message.
    const isKnown = limit !== undefined && promptTokens !== undefined
    const numbers = isKnown ? `: ${promptTokens} tokens > ${limit} maximum` : ''
    return { type: 'invalid_request_error', message: `prompt is too long${numbers}` }
  },
}

/** The setting below needs this beta. */
const HEADER = { name: BETA_HEADER, value: 'thinking-binding-controls-2026-08-01' }
const DROP = JSON.stringify({ prefix_mismatch_behavior: 'drop_block' })

const shared = dialectMembers(messagesStream)

export const messages: Dialect = {
  ...shared,
  ...messagesReplies,
  name: 'messages',
  api: anthropic,
  // `v1/messages/count_tokens` and `v1/messages/batches` return no answer; `threads/ID/messages` is another API. The
  // base URL of some clients has no `v1`.
  claims(segments, hasHeader) {
    if (VERTEX.test(`/${segments.slice(-4).join('/')}`)) return 4
    return segments.at(-1) === 'messages' && (segments.at(-2) === 'v1' || hasHeader === true) ? 1 : 0
  },
  read,
  modelOf: (input) => modelInPath(input) ?? shared.modelOf(input),
  responseId: (head) => firstText(head, 'id'),
  // How the Messages API reports bound reasoning, and how a request asks it to drop such reasoning. Source:
  // platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
  boundThinking: {
    isBoundThinkingError(body) {
      const error = parseObject(body.toString('utf8'))?.['error']
      return textOf(propertyOf(error, 'message')).includes('bound to a different conversation')
    },
    // Changes nothing for a client that sets `block_binding` itself, or turns thinking off.
    dropBoundThinking(json) {
      const object = root(json)
      const fields = members(json, object)
      const thinking = member(fields, 'thinking')?.value
      if (!thinking || (kindAt(json, thinking) === 'scalar' && decode(json, thinking) === null)) {
        const setting = `{"type":"adaptive","block_binding":${DROP}}`
        return { edits: [setMember(object, fields, 'thinking', setting)], header: HEADER }
      }
      const value = decode(json, thinking)
      if (!isObject(value) || value['type'] === 'disabled' || isObject(value['block_binding'])) return undefined
      return { edits: [setMember(thinking, members(json, thinking), 'block_binding', DROP)], header: HEADER }
    },
  },
}
