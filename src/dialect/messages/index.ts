/** Anthropic's Messages, as Anthropic and the providers with the same API implement it. */
import type { Conversation, Role, ToolCall, ToolResult } from '../../core/conversation.ts'
import type { Channel } from '../../core/decide.ts'
import { isObject } from '../../core/json-object.ts'
import type { Work } from '../../core/work.ts'
import { decodeInTurns, PIECE } from '../../json/compare.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import type { ListIndex } from '../../json/list.ts'
import {
  firstKey,
  isKey,
  member,
  members,
  nextKey,
  type Span,
  skipString,
  skipValue,
  valueAfter,
} from '../../json/scan.ts'
import type { Dialect, DialectRequest, RequestInput } from '../dialect.ts'
import { dialectMembers } from '../shared/dialect-members.ts'
import { collapseRepeats } from '../shared/repeats.ts'
import {
  addText,
  fieldOf,
  holdsItems,
  indexRequest,
  isTrue,
  type ListedItem,
  memoize,
  type NamedRole,
  resultsToKeep,
  roleOf,
  stringAt,
} from '../shared/request-list.ts'
import { type FormatPlace, requestMembers } from '../shared/request-members.ts'
import { responseFacts, textsUnder } from '../shared/response-facts.ts'
import { firstText } from '../shared/usage-text.ts'
import { anthropic } from './api.ts'
import {
  beginsWithBilling,
  type Content,
  callsOf,
  contentAt,
  countOf,
  idsRunByProvider,
  isRunByProvider,
  picturesOf,
  resultsOf,
  systemTextOf,
  type TextsAndCalls,
  textsAndCallsOf,
  textsOf,
} from './content.ts'
import {
  blockedResults,
  messagesAfterBlock,
  readMessage,
  replyInMessages,
  resultMessage,
  withoutMessageCalls,
  writeMessage,
} from './reply.ts'
import { messagesStream } from './stream.ts'
import { messagesBoundThinking } from './thinking.ts'
import { messagesCallsNothing, messagesMetadata } from './usage.ts'
import { previousIdIn } from './wire.ts'

const ROLES: readonly NamedRole[] = [
  ['user', 'user'],
  ['assistant', 'assistant'],
  ['system', 'system'],
]

const QUOTE = 0x22

/** The byte offsets of a message, and what it contains. */
interface MessageItem extends ListedItem {
  /** Where its content starts, counted from the start of the message; 0 if it has none. */
  readonly content: number
  readonly callCount: number
  readonly resultCount: number
  /** It contains calls that the provider made itself. */
  readonly hasProviderCalls: boolean
  /** Its content is a text, or contains a text block. */
  readonly hasText: boolean
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
    if (isKey(json, key, keyEnd, 'content')) {
      content = contentAt(json, value, work)
      end = content.value?.end ?? value
    } else {
      end = skipValue(json, value)
      if (isKey(json, key, keyEnd, 'role')) role = roleOf(json, value, end, ROLES)
    }
    key = nextKey(json, end)
  }
  return {
    start: at,
    end: key + 1,
    role,
    content: content?.value ? content.value.start - at : 0,
    callCount: content && role === 'assistant' ? countOf(content, 'tool_use') : 0,
    resultCount: content && role === 'user' ? countOf(content, 'tool_result') : 0,
    hasProviderCalls: role === 'assistant' && content?.blocks.some(isRunByProvider) === true,
    hasText: content !== undefined && (content.blocks.length === 0 || countOf(content, 'text') > 0),
  }
}

const NO_CALLS: readonly ToolCall[] = []
const NO_RESULTS: readonly ToolResult[] = []
const NO_TEXTS: readonly string[] = []

/** A conversation that can also return the content of a message. */
interface MessagesConversation extends Conversation {
  content(at: number): Content
}

/** `isThread`: the request continues a thread that the provider stores. */
function conversationOf(index: RequestIndex, isThread: boolean): MessagesConversation {
  const { json, items, fields, work } = index
  const content = memoize((at): Content => {
    const item = items[at]
    if (!item || item.content === 0) return { json, work, value: undefined, blocks: [] }
    return contentAt(json, item.start + item.content, work)
  })
  const large = new Map<number, TextsAndCalls>()
  let largeSystem: unknown
  function* prepare(at: number): Generator<void> {
    large.set(at, yield* textsAndCallsOf(content(at)))
  }
  function* prepareSystem(span: Span): Generator<void> {
    largeSystem = yield* decodeInTurns(json, span, work)
  }
  const role = (at: number): Role => items[at]?.role ?? 'system'
  const callCount = (at: number): number => items[at]?.callCount ?? 0
  const resultCount = (at: number): number => items[at]?.resultCount ?? 0
  return {
    work,
    model: stringAt(json, member(fields, 'model')?.value.start),
    streams: isTrue(json, member(fields, 'stream')?.value),
    // The provider stores the tools that a thread began with.
    offersTools: holdsItems(json, member(fields, 'tools')?.value) || isThread,
    length: items.length,
    systemText: () => systemTextOf(largeSystem ?? fieldOf(index, 'system')),
    role,
    content,
    texts: (at) => large.get(at)?.texts ?? (items[at]?.hasText ? textsOf(content(at)) : NO_TEXTS),
    calls: (at) => large.get(at)?.calls ?? (callCount(at) > 0 ? callsOf(content(at)) : NO_CALLS),
    results: (at) => (resultCount(at) > 0 ? resultsOf(content(at)) : NO_RESULTS),
    ranByProvider: (at) => (items[at]?.hasProviderCalls ? idsRunByProvider(content(at)) : NO_TEXTS),
    pictures: (at) => (role(at) === 'user' ? picturesOf(content(at)) : NO_TEXTS),
    prepare(at) {
      const span = at === -1 ? member(fields, 'system')?.value : items[at]
      if (!span || span.end - span.start <= PIECE) return undefined
      return at === -1 ? prepareSystem(span) : prepare(at)
    },
    forget() {
      content.forget()
      large.clear()
      largeSystem = undefined
    },
    callCount,
    resultCount,
  }
}

/** True if reasoning in the newest answer, or in the answer to this request, may be bound to this prompt. */
function bindsReasoning(index: RequestIndex, conversation: MessagesConversation): boolean {
  const thinking = fieldOf(index, 'thinking')
  if (isObject(thinking)) return thinking['type'] !== 'disabled'
  const newest = index.items.findLastIndex(({ role }) => role === 'assistant')
  return newest !== -1 && countOf(conversation.content(newest), 'thinking') > 0
}

/** Appends a text to the message at `at`, after tool results as a separate block; `undefined` if it can't. */
function addToMessage(
  { json, items }: RequestIndex,
  conversation: MessagesConversation,
  at: number,
  text: string,
): Edit | undefined {
  const message = items[at]
  if (!message) return undefined
  const { value } = conversation.content(at)
  if (!value) return setMember(message, members(json, message), 'content', JSON.stringify(text))
  if (conversation.resultCount(at) > 0) return appendElement(json, value, JSON.stringify({ type: 'text', text }))
  return addText(json, value, text)
}

/** Appends a text to the message at an index; `undefined` if it can't. */
type AddText = (at: number, text: string) => Edit | undefined

/**
 * Returns edits for a notice. Not in a message of role `system`, as most models refuse such a request; the API merges
 * consecutive user messages.
 */
function noticeIn({ json, list, items }: RequestIndex, add: AddText, text: string, channel: Channel) {
  if (items.length === 0 || channel === 'system') return undefined
  if (channel === 'user') {
    return [appendElement(json, list, JSON.stringify({ role: 'user', content: text }))]
  }
  const last = items.findLastIndex(({ role }) => role === 'user')
  const edit = add(last, text)
  return edit && [edit]
}

/**
 * Returns edits that add a text to the system text, or to the first user message if the system text must stay as it is.
 */
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

function chooseNone({ object, fields }: RequestIndex): Edit {
  return setMember(object, fields, 'tool_choice', '{"type":"none"}')
}

/**
 * The members of a request in a thread, of which the provider stores the system text, the tools, and all messages but
 * the results of the newest response. `previous`: the id of that response.
 */
function threadMembers(
  index: RequestIndex,
  { content, resultCount }: MessagesConversation,
  previous: string,
): Partial<DialectRequest> {
  const { json, items, fields, list } = index
  /** Continues from another response. */
  const redirect = (id: string | undefined): Edit[] => {
    const thread = member(fields, 'thread')?.value
    const place = thread && member(members(json, thread), 'previous_message_id')?.value
    return id === undefined || !place ? [] : [{ ...place, text: JSON.stringify(id) }]
  }
  return {
    announce: () => [],
    banTools: () => [chooseNone(index)],
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
      const [first] = content(items.findIndex((_, at) => resultCount(at) > 0)).blocks
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
  const index = indexRequest(body, 'messages', readItem, known)
  if (!index) return undefined
  const field = (name: string): unknown => fieldOf(index, name)
  const previous = previousIdIn(field)
  const conversation = conversationOf(index, previous !== undefined)
  const isKept = isObject(field('thread'))
  const { json, object, fields, list, items } = index
  const add: AddText = (at, text) => addToMessage(index, conversation, at, text)
  // The first call that the provider made in the first answer: that response may have paused.
  const first = items.findIndex(({ role }) => role === 'assistant')
  const request: DialectRequest = {
    previous,
    firstItem: previous === undefined && first !== -1 ? conversation.ranByProvider?.(first)[0] : undefined,
    isKept,
    hasOneEnd: isKept,
    bindsReasoning: () => bindsReasoning(index, conversation),
    conversation,
    notice: (text, channel) => noticeIn(index, add, text, channel),
    collapseRepeats: () => collapseRepeats(index, conversation, add),
    announce: (text) => announceIn(index, add, text),
    banTools(ban) {
      if (ban === 'no_tools') return removeMembers(fields, TOOL_FIELDS)
      // Providers refuse a tool_choice without tools.
      return member(fields, 'tools') ? [chooseNone(index)] : []
    },
    keepForced(name) {
      const choice = JSON.stringify({ type: 'tool', name })
      return name === undefined ? [] : [setMember(object, fields, 'tool_choice', choice)]
    },
    continueAfterBlock: (blockedMessages) =>
      blockedMessages.flatMap(messagesAfterBlock).map((message) => appendElement(json, list, message)),
    pendingResults: (blockedMessage, blocked) => (isKept ? blockedResults(blockedMessage, blocked) : []),
    skippedResults: () => undefined,
    injectPendingResults: () => [],
    // A spread costs a microsecond for each new member after it.
    ...requestMembers(index, FORMATS),
  }
  return previous === undefined ? request : { ...request, ...threadMembers(index, conversation, previous) }
}

/** The dialect of Messages. */
export const messages: Dialect = {
  ...dialectMembers(messagesStream),
  name: 'messages',
  api: anthropic,
  // `v1/messages/count_tokens` and `v1/messages/batches` return no answer; `threads/ID/messages` is another API.
  claims: (segments) => segments.at(-2) === 'v1' && segments.at(-1) === 'messages',
  read,
  responseId: (head) => firstText(head, 'id'),
  metadata: messagesMetadata,
  boundThinking: messagesBoundThinking,
  callsNothing: messagesCallsNothing,
  responseFacts: (response) => responseFacts(response, 'message', textsUnder(response.tail, 'stop_reason')),
  readAnswer: readMessage,
  writeAnswer: writeMessage,
  withoutCalls: withoutMessageCalls,
  reply: replyInMessages,
}
