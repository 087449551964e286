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
  | 'loop_guard'
  | 'operator'

/** How and why Governor ended a run: the field `governor` of its last response. */
export interface GovernorEnd {
  readonly terminal_state: GovernorState
  readonly terminal_reason: GovernorReason
  /** The last response holds a real text. This and what follows is unset where only headers were read. */
  readonly has_final_answer?: boolean
  /** The provider cut the answer off. */
  readonly truncated?: true
  /** What the run used of the limit that ended it, and that limit. */
  readonly budget_used?: number
  readonly budget_max?: number
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

/**
 * Returns how Governor ended the run of a response; `undefined` if the run goes on. Takes a completion, a message, a
 * chunk or an event of a stream, the result of the Vercel AI SDK, a message of LangChain that holds its raw response,
 * and headers or a `Response` of fetch, which have only state and reason.
 */
export function governorOf(response: unknown): GovernorEnd | undefined {
  if (!isObject(response)) return undefined
  const { governor, response: inner, response_metadata: metadata, additional_kwargs: raw, headers } = response
  if (isEnd(governor)) return governor
  for (const place of [inner, metadata, isObject(raw) ? raw['__raw_response'] : undefined]) {
    const found = governorOf(place)
    if (found) return found
  }
  for (const from of [headers, response]) {
    const terminal_state = headerOf(from, 'x-governor-terminal-state') as GovernorState | undefined
    const terminal_reason = headerOf(from, 'x-governor-terminal-reason') as GovernorReason | undefined
    const session = headerOf(from, 'x-governor-session')
    if (terminal_state !== undefined && terminal_reason !== undefined)
      return { terminal_state, terminal_reason, ...(session === undefined ? {} : { session }) }
  }
  return undefined
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
