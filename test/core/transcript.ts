/** Conversations as chat clients send them, and a session that sees one request after the other. */

import { DEFAULT_TEXTS } from '../../src/core/budget/budget-notices.ts'
import { amountsBy } from '../../src/core/budget/meters.ts'
import { createCalendar } from '../../src/core/budget/scopes.ts'
import type { Conversation } from '../../src/core/conversation/conversation.ts'
import { EMPTY_TRANSCRIPT } from '../../src/core/conversation/transcript.ts'
import type { BudgetPolicy } from '../../src/core/decide.ts'
import { buildRegistry } from '../../src/core/harness/match.ts'
import { HARNESS_TEXTS, SUMMARY_REQUESTS } from '../../src/core/harness/texts.ts'
import { hashOf } from '../../src/core/hash.ts'
import type { LoopPolicy } from '../../src/core/loop/patterns.ts'
import type { Request } from '../../src/core/request.ts'
import { countRequest } from '../../src/core/session/count-request.ts'
import { factsOf, type RequestFacts, withPrevious } from '../../src/core/session/request-facts.ts'
import { NEW_SESSION, type Run, type RunState, type Session, type Thread } from '../../src/core/session/session.ts'
import { type CountedRequest, type Delivered, noteRelayed } from '../../src/core/session/transitions.ts'
import { chat } from '../../src/dialect/chat/index.ts'

export type Message = Readonly<Record<string, unknown>>

export const registry = buildRegistry(HARNESS_TEXTS, SUMMARY_REQUESTS)

export const system = (content: string): Message => ({ role: 'system', content })
export const user = (content: unknown): Message => ({ role: 'user', content })
export const said = (content: string): Message => ({ role: 'assistant', content })
export const result = (id: string, content = 'ok'): Message => ({ role: 'tool', tool_call_id: id, content })

/** An assistant message that calls one tool for each id. */
export const called = (...ids: readonly string[]): Message => ({
  role: 'assistant',
  content: null,
  tool_calls: ids.map((id) => ({
    id,
    type: 'function',
    function: { name: 'search', arguments: '{"q":"a"}' },
  })),
})

/** `count` iterations: a tool call and its result each, with ids that begin with `name`. */
export const steps = (name: string, count: number): Message[] =>
  Array.from({ length: count }, (_, at) => [called(`${name}${at}`), result(`${name}${at}`)]).flat()

const TOOLS = [{ type: 'function', function: { name: 'search', parameters: {} } }]

export function bodyOf(messages: readonly Message[], extra: Message = {}): Buffer {
  return Buffer.from(JSON.stringify({ model: 'gpt-4o', messages, tools: TOOLS, ...extra }))
}

export function conversationOf(messages: readonly Message[], extra: Message = {}): Conversation {
  const request = chat.read({ path: '', body: bodyOf(messages, extra) })
  if (!request) throw new Error('not a chat request')
  return request.conversation
}

export function requestFacts(messages: readonly Message[], extra: Message = {}): RequestFacts {
  const conversation = conversationOf(messages, extra)
  return factsOf(EMPTY_TRANSCRIPT, conversation, hashOf(bodyOf(messages, extra).toString()), registry)
}

const NO_LIMITS = amountsBy(() => 0)

/** A run without requests. */
export const runWith = (changes: Partial<Run> = {}): Run => ({
  id: 'run',
  startedAt: 0,
  askedAt: 0,
  counts: {},
  recentRequests: [],
  ...changes,
})

/** A thread with a run and one user message. */
export const threadWith = (run: Run, changes: Partial<Thread> = {}): Thread => ({
  id: 'thread',
  name: '',
  number: 1,
  system: hashOf('system'),
  userMessageHashes: [],
  userMessageCount: 1,
  run,
  ...changes,
})

/** A request with these facts, of an agent that nobody limits. */
export function requestOf(facts: RequestFacts, more: Partial<Request> = {}): Request {
  const conversation = conversationOf([])
  return {
    now: 0,
    operation: 'operation',
    conversation,
    registry,
    facts,
    demands: [],
    tools: [],
    thread: '',
    isDerived: false,
    upstream: 'openai',
    model: 'gpt-4o',
    loop: LOOP,
    budget: BUDGET,
    limits: { run: NO_LIMITS, session: NO_LIMITS },
    observesOnly: false,
    ...more,
  }
}

const LOOP: LoopPolicy = {
  enabled: false,
  mode: 'observe',
  repetitionThreshold: 3,
  standstill: 6,
  sameCallAnyResult: 8,
  pollMultiplier: 4,
  maxWarningsBeforeBlock: 2,
  maxBlocks: 5,
  exemptTools: [],
  volatile: 'default',
}

/** A budget without limits. */
export const BUDGET: BudgetPolicy = {
  enabled: true,
  run: NO_LIMITS,
  session: NO_LIMITS,
  scopes: [],
  calendar: () => createCalendar('UTC'),
  thresholds: { style: 'tiers', caution: 0.7, warning: 0.9, adaptive: true },
  trackerEvery: 5,
  channel: 'auto',
  announce: [],
  cautionWhen: 'always',
  escalate: true,
  dropTools: [],
  agents: { total: 0, concurrent: 0, depth: 0 },
  spawnTools: [],
  unknownPrice: 'warn',
  texts: DEFAULT_TEXTS,
}

export interface RequestOptions {
  /** The client's name for the thread. */
  readonly thread?: string
  /** Further fields of the body. */
  readonly extra?: Message
  readonly isDerived?: boolean
  /** When it arrives, in milliseconds since the epoch. */
  readonly now?: number
  /** The id of the response that it continues from, where the provider keeps the conversation. */
  readonly previous?: string
  /** Further members of the request. */
  readonly more?: Partial<Request>
}

/** Identifies a request of a session that was counted. */
export const countedOf = (messages: readonly Message[], thread = ''): CountedRequest => ({
  fingerprint: requestFacts(messages).fingerprint,
  thread,
})

/** One session, from its first request on. */
export function newSession() {
  let session: Session = NEW_SESSION
  let seen = 0
  return {
    get session() {
      return session
    },
    change(change: (session: Session) => Session) {
      session = change(session)
    },
    see(
      messages: readonly Message[],
      { thread = '', extra = {}, isDerived = false, now = 1_000, previous, more }: RequestOptions = {},
    ): RunState & { readonly toolCalls: number } {
      const conversation = conversationOf(messages, extra)
      const operation = `operation ${++seen}`
      const own = requestFacts(messages, extra)
      const facts = previous === undefined ? own : withPrevious(own, conversation, previous, true)
      const request = requestOf(facts, { operation, conversation, thread, now, isDerived, ...more })
      const counted = countRequest(session, request)
      session = counted.session
      return { ...counted.result, toolCalls: counted.result.run.counts.tool_calls ?? 0 }
    },
    iteration(messages: readonly Message[], options: RequestOptions = {}): number {
      return this.see(messages, options).iteration
    },
    /** The client of a request gets an answer with these calls; its bytes were counted before. */
    relay(messages: readonly Message[], ids: readonly string[], more: Partial<Delivered> = {}): void {
      const callIds = requestFacts([...messages, called(...ids)]).callIds.at(-1) ?? []
      const answer = { operation: ids.join(' '), callIds, ...more }
      session = noteRelayed(session, countedOf(messages), answer)
    },
  }
}
