// biome-ignore-all lint/suspicious/noTsIgnore: an error is expected only where a package is not installed
/**
 * The package's export `agent-governor/types`: how an agent in TypeScript sees that Governor ended its run. An import
 * adds the field `governor` to the responses of the packages `openai` and `@anthropic-ai/sdk`.
 */

/** The states in which Governor ends a run, as the field and the header `x-governor-terminal-state` have them. */
export type GovernorState =
  | 'tool_limit_reached'
  | 'budget_exceeded'
  | 'loop_detected'
  | 'stopped'
  | 'context_overflow'
  | 'no_response'
  | 'completed'

/** What ended the run, as the field and the header `x-governor-terminal-reason` have it. */
export type GovernorReason =
  | 'max_iterations'
  | 'max_tool_calls'
  | 'max_tokens'
  | 'max_cost'
  | 'max_seconds'
  | 'max_runs'
  | 'loop_guard'
  | 'max_agents'
  | 'max_concurrent_agents'
  | 'max_depth'
  | 'operator'
  | 'paused'

/** How and why Governor ended a run: the field `governor` of its last response. */
export interface GovernorEnd {
  readonly terminal_state: GovernorState
  readonly terminal_reason: GovernorReason
  /** The last response holds a real text. Unset where only the headers of a stream were read. */
  readonly has_final_answer?: boolean
  /** The provider cut the answer off. */
  readonly truncated?: true
  /** What the run used of the limit that ended it, and that limit. Unset where only headers were read. */
  readonly budget_used?: number
  readonly budget_max?: number
  /** What the limit is of. */
  readonly scope?: 'run' | 'session' | 'minute' | 'hour' | 'day' | 'week' | 'month'
  /** When a limit of an hour, a day, a week or a month begins anew (RFC 3339). */
  readonly resets_at?: string
  readonly session?: string
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null

function headerOf(headers: unknown, name: string): string | undefined {
  if (!isObject(headers)) return undefined
  const { get } = headers
  const value = typeof get === 'function' ? get.call(headers, name) : headers[name]
  return typeof value === 'string' ? value : undefined
}

const isEnd = (value: unknown): value is GovernorEnd => isObject(value) && 'terminal_state' in value

/** Where clients keep a response, or what holds one: results and events of SDKs, and messages of frameworks. */
const PLACES = [
  ...['response', 'body', 'data', 'event', 'rawValue', 'rawResponse', 'rawResponses', 'providerData'],
  ...['response_metadata', 'additional_kwargs', '__raw_response', 'sdkHttpResponse'],
]

/** How many places stand in each other: an event of OpenAI Agents holds an event that holds a response. */
const MAX_DEPTH = 4

function* placesIn(holder: unknown, depth = 0): Generator<Readonly<Record<string, unknown>>> {
  const value = Array.isArray(holder) ? holder.at(-1) : holder
  if (!isObject(value) || depth > MAX_DEPTH) return
  yield value
  for (const place of PLACES) yield* placesIn(value[place], depth + 1)
}

function endInHeaders(headers: unknown): GovernorEnd | undefined {
  const terminal_state = headerOf(headers, 'x-governor-terminal-state') as GovernorState | undefined
  const terminal_reason = headerOf(headers, 'x-governor-terminal-reason') as GovernorReason | undefined
  if (terminal_state === undefined || terminal_reason === undefined) return undefined
  const hasAnswer = headerOf(headers, 'x-governor-has-final-answer')
  const session = headerOf(headers, 'x-governor-session')
  return {
    terminal_state,
    terminal_reason,
    ...(hasAnswer === undefined ? {} : { has_final_answer: hasAnswer === 'true' }),
    ...(session === undefined ? {} : { session }),
  }
}

/**
 * Returns how Governor ended the run of a response; `undefined` if the run goes on. Takes a completion, a message, a
 * chunk or an event of a stream, a result of the Vercel AI SDK (or its awaited `response`), of Mastra or of OpenAI
 * Agents, a response of the Google GenAI SDK, a message of LangChain that holds its raw response, and headers or a
 * `Response` of fetch. Reads the body where it can see it. Headers have state and reason, and only those of a response
 * that is not streamed say whether it has an answer: compare `has_final_answer` with `false`.
 */
export function governorOf(response: unknown): GovernorEnd | undefined {
  let inHeaders: GovernorEnd | undefined
  for (const place of placesIn(response)) {
    if (isEnd(place['governor'])) return place['governor']
    inHeaders ??= endInHeaders(place['headers']) ?? endInHeaders(place)
  }
  return inHeaders
}

/** The field that Governor adds to the last response of a run. */
export interface WithGovernor {
  governor?: GovernorEnd
}

// A package that is not installed can't be augmented, which is no error of the agent.
/** @ts-ignore */
declare module 'openai/resources/chat/completions/completions' {
  interface ChatCompletion extends WithGovernor {}
  interface ChatCompletionChunk extends WithGovernor {}
}

/** @ts-ignore */
declare module 'openai/resources/responses/responses' {
  interface Response extends WithGovernor {}
}

/** @ts-ignore */
declare module '@anthropic-ai/sdk/resources/messages/messages' {
  interface Message extends WithGovernor {}
  interface RawMessageDeltaEvent extends WithGovernor {}
}

/** @ts-ignore */
declare module '@anthropic-ai/sdk/resources/beta/messages/messages' {
  interface BetaMessage extends WithGovernor {}
  interface BetaRawMessageDeltaEvent extends WithGovernor {}
}
