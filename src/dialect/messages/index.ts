/** Anthropic's Messages, as Anthropic and the providers with the same API implement it. */
import type { Conversation, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import { isObject, textOf } from '../../core/json-object.ts'
import type { Work } from '../../core/work.ts'
import { decodeInTurns, PIECE } from '../../json/compare.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import { indexList, type ListIndex } from '../../json/list.ts'
import {
  firstKey,
  isString,
  member,
  members,
  nextKey,
  QUOTE,
  type Span,
  skipString,
  skipValue,
  valueAfter,
} from '../../json/scan.ts'
import type { Dialect, DialectRequest, RequestInput } from '../dialect.ts'
import { dialectMembers } from '../shared/dialect-members.ts'
import {
  type AddText,
  addText,
  fieldOf,
  holdsItems,
  isTrue,
  type ListedItem,
  type Memo,
  memoize,
  type NamedRole,
  noticeIn,
  resultsToKeep,
  roleOf,
  stringIn,
} from '../shared/request-list.ts'
import { type FormatPlace, requestMembers } from '../shared/request-members.ts'
import { firstText } from '../shared/response-tail.ts'
import { anthropic, messagesBoundThinking } from './api.ts'
import {
  beginsWithBilling,
  type Content,
  contentAt,
  countOf,
  drained,
  idsRunByProvider,
  isRunByProvider,
  picturesOf,
  resultsOf,
  systemTextOf,
  textsAndCallsOf,
} from './content.ts'
import { messagesAfterBlock, messagesReplies, resultMessage, resultsOfBlocked } from './reply.ts'
import { messagesStream } from './stream.ts'

const ROLES: readonly NamedRole[] = [
  ['user', 'user'],
  ['assistant', 'assistant'],
  ['system', 'system'],
]

/** The byte offsets of a message, and what it contains. */
interface MessageItem extends ListedItem {
  /** Where its content starts; 0 if it has none. */
  readonly content: number
  readonly callCount: number
  readonly resultCount: number
  /** It contains calls that the provider made itself. */
  readonly hasProviderCalls: boolean
}

type RequestIndex = ListIndex<MessageItem>

/** Reads the role of a message and counts its blocks in one pass, without decoding them. */
function readItem(json: Buffer, at: number, work: Work): MessageItem {
  let role: Role = 'system'
  let content: Content | undefined
  let key = firstKey(json, at)
  while (json[key] === QUOTE) {
    work.spend(1)
    const keyEnd = skipString(json, key)
    const value = valueAfter(json, keyEnd)
    let end: number
    if (isString(json, key, keyEnd, 'content')) {
      content = contentAt(json, value, work)
      end = content.value?.end ?? value
    } else {
      end = skipValue(json, value)
      if (isString(json, key, keyEnd, 'role')) role = roleOf(json, value, end, ROLES)
    }
    key = nextKey(json, end)
  }
  return {
    start: at,
    end: key + 1,
    role,
    content: content?.value?.start ?? 0,
    callCount: content && role === 'assistant' ? countOf(content, 'tool_use') : 0,
    resultCount: content && role === 'user' ? countOf(content, 'tool_result') : 0,
    hasProviderCalls: role === 'assistant' && content?.blocks.some(isRunByProvider) === true,
  }
}

const NO_CALLS: readonly ToolCall[] = []
const NO_RESULTS: readonly ToolResult[] = []
const NO_TEXTS: readonly string[] = []

/** `content`: of the message at an index. `isThread`: the request continues a thread that the provider stores. */
function conversationOf(index: RequestIndex, content: Memo<Content>, isThread: boolean): Conversation {
  const { json, items, fields, work } = index
  const decoded = memoize((at) => drained(textsAndCallsOf(content(at))))
  let largeSystem: unknown
  function* prepare(at: number, span: Span): Generator<void> {
    if (at === -1) largeSystem = yield* decodeInTurns(json, span, work)
    else decoded.values.set(at, yield* textsAndCallsOf(content(at)))
  }
  const callCount = (at: number): number => items[at]?.callCount ?? 0
  const resultCount = (at: number): number => items[at]?.resultCount ?? 0
  return {
    work,
    model: stringIn(json, fields, 'model'),
    streams: isTrue(json, fields, 'stream'),
    // The provider stores the tools that a thread began with.
    offersTools: holdsItems(json, member(fields, 'tools')?.value) || isThread,
    length: items.length,
    systemText: () => systemTextOf(largeSystem ?? fieldOf(index, 'system')),
    role: (at) => items[at]?.role ?? 'system',
    texts: (at) => decoded(at).texts,
    calls: (at) => (callCount(at) > 0 ? decoded(at).calls : NO_CALLS),
    results: (at) => (resultCount(at) > 0 ? resultsOf(content(at)) : NO_RESULTS),
    ranByProvider: (at) => (items[at]?.hasProviderCalls ? idsRunByProvider(content(at)) : NO_TEXTS),
    pictures: (at) => (items[at]?.role === 'user' ? picturesOf(content(at)) : NO_TEXTS),
    prepare(at) {
      const span = at === -1 ? member(fields, 'system')?.value : items[at]
      return span && span.end - span.start > PIECE ? prepare(at, span) : undefined
    },
    forget() {
      content.values.clear()
      decoded.values.clear()
      largeSystem = undefined
    },
    callCount,
    resultCount,
  }
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

/** Where the output format stands, now and in an older form. */
const FORMATS: readonly FormatPlace[] = [['output_config', 'format'], ['output_format']]

/** The API refuses MCP servers without the tools that name them. */
const TOOL_FIELDS = new Set(['tools', 'tool_choice', 'mcp_servers'])

/**
 * The members of a request in a thread. The provider stores the system text, the tools and all messages; the request
 * holds only the results of the newest response. `previous`: the id of that response. Source:
 * platform.claude.com/docs/en/build-with-claude/message-threads
 */
function threadMembers(index: RequestIndex, content: Memo<Content>, previous: string): Partial<DialectRequest> {
  const { json, items, object, fields, list } = index
  /** Continues from another response. */
  const redirect = (id: string | undefined): Edit[] => {
    const thread = member(fields, 'thread')?.value
    const place = thread && member(members(json, thread), 'previous_message_id')?.value
    return id === undefined || !place ? [] : [{ ...place, text: JSON.stringify(id) }]
  }
  return {
    announce: () => [],
    banTools: () => [setMember(object, fields, 'tool_choice', '{"type":"none"}')],
    continueAfterBlock(blockedMessages) {
      const last = blockedMessages.at(-1)
      const edits = redirect(last?.buffered.id)
      if (!last || edits.length === 0) return undefined
      return [...edits, { ...list, text: `[${resultMessage(last)}]` }]
    },
    injectPendingResults(pendingResults, redirectTo) {
      const redirected = redirect(redirectTo)
      if (pendingResults.length === 0) return redirected
      // They go to the other results of the same response; the API demands that results come first in a message.
      const [first] = content(items.findIndex(({ resultCount }) => resultCount > 0)).blocks
      const results = pendingResults.join(',')
      if (first) return [...redirected, { start: first.start, end: first.start, text: `${results},` }]
      const message = `{"role":"user","content":[${results}]}`
      return [...redirected, ...(member(fields, 'messages') ? [prependElement(json, list, message)] : [])]
    },
    skippedResults(unique) {
      const blocks = items.flatMap((_, at) => content(at).blocks)
      const results = blocks.filter(({ type }) => type === 'tool_result')
      const pendingResults = resultsToKeep(json, results, 'content', ['string', 'array'])
      return { id: `msg_${unique}`, pendingResults, redirectTo: previous }
    },
  }
}

function read({ body, known }: RequestInput): DialectRequest | undefined {
  const index = indexList(body, 'messages', readItem, known)
  if (!index) return undefined
  const { json, object, fields, list, items, work } = index
  const content = memoize((at): Content => {
    const start = items[at]?.content ?? 0
    return start > 0 ? contentAt(json, start, work) : { json, work, value: undefined, blocks: [] }
  })
  const thread = fieldOf(index, 'thread')
  const isKept = isObject(thread)
  const previous = (isKept && thread['type'] === 'continue' && textOf(thread['previous_message_id'])) || undefined
  const conversation = conversationOf(index, content, previous !== undefined)
  const add: AddText = (at, text) => {
    const message = items[at]
    const { value } = content(at)
    if (!message) return undefined
    if (!value) return setMember(message, members(json, message), 'content', JSON.stringify(text))
    if (message.resultCount > 0) return appendElement(json, value, JSON.stringify({ type: 'text', text }))
    return addText(json, value, text)
  }
  // The first call that the provider made in the first answer: that response may have paused.
  const first = items.findIndex(({ role }) => role === 'assistant')
  const request: DialectRequest = {
    previous,
    firstItem: previous === undefined && first !== -1 ? conversation.ranByProvider?.(first)[0] : undefined,
    isKept,
    hasOneEnd: isKept,
    // Reasoning in the newest answer, or in the answer to this request.
    bindsReasoning() {
      const thinking = fieldOf(index, 'thinking')
      if (isObject(thinking)) return thinking['type'] !== 'disabled'
      const newest = items.findLastIndex(({ role }) => role === 'assistant')
      return countOf(content(newest), 'thinking') > 0
    },
    conversation,
    // Most models refuse a message of role `system`; the API merges consecutive user messages.
    notice: (text, channel) => (channel === 'system' ? undefined : noticeIn(index, text, channel, add)),
    announce: (text) => announceIn(index, add, text),
    banTools(ban) {
      if (ban === 'no_tools') return removeMembers(fields, TOOL_FIELDS)
      // Providers refuse a tool_choice without tools.
      return member(fields, 'tools') ? [setMember(object, fields, 'tool_choice', '{"type":"none"}')] : []
    },
    keepForced(name) {
      const choice = JSON.stringify({ type: 'tool', name })
      return name === undefined ? [] : [setMember(object, fields, 'tool_choice', choice)]
    },
    continueAfterBlock: (blockedMessages) =>
      blockedMessages.flatMap(messagesAfterBlock).map((message) => appendElement(json, list, message)),
    pendingResults: (blockedMessage, blocked) => (isKept ? resultsOfBlocked(blockedMessage, blocked) : []),
    skippedResults: () => undefined,
    injectPendingResults: () => [],
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, conversation, FORMATS, add),
  }
  return previous === undefined ? request : { ...request, ...threadMembers(index, content, previous) }
}

/** The dialect of Messages. */
export const messages: Dialect = {
  ...dialectMembers(messagesStream),
  ...messagesReplies,
  name: 'messages',
  api: anthropic,
  // `v1/messages/count_tokens` and `v1/messages/batches` return no answer; `threads/ID/messages` is another API.
  claims: (segments) => segments.at(-2) === 'v1' && segments.at(-1) === 'messages',
  read,
  responseId: (head) => firstText(head, 'id'),
  boundThinking: messagesBoundThinking,
}
