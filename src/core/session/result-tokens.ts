/** How many tokens of a prompt are results of tools: a share by bytes, as providers count tokens only of the whole. */
import { type Named, plus, withAmounts } from '../by-name.ts'
import { withResults } from '../conversation/transcript.ts'
import type { Counts } from '../counters.ts'
import type { Request } from '../request.ts'
import { type CallUsage, estimateTokens } from '../usage.ts'
import type { RunState, Thread } from './session.ts'

/** Returns the bytes of the results that a request brings for a conversation that its provider keeps, by tool. */
function newResults({ conversation, facts }: Request, { loopState }: Thread): readonly Named<number>[] {
  const tools = new Map((loopState?.pendingCalls ?? []).map(({ id, tool }) => [id, tool]))
  let bytes: readonly Named<number>[] = []
  for (let at = 0; at < facts.transcript.length && conversation.role(at) !== 'assistant'; at++)
    bytes = withResults(bytes, conversation, at, tools)
  return bytes
}

/** What of a request shows which tokens of its prompt are results of tools. */
export interface PromptBytes {
  readonly bytes: number
  /** How many messages it had, and the place of the newest answer among them. */
  readonly messages: number | undefined
  readonly newest: number
  /** Its provider keeps the conversation. */
  readonly isContinued: boolean
  /** Its prompt was answered before. */
  readonly isRetry: boolean
  /** Bytes of the results that it brings, by tool. */
  readonly results: readonly Named<number>[]
  /** Bytes of those after the newest answer; unset if no limit counts what tools bring. */
  readonly size: number | undefined
}

/** Returns what shows which tokens are results. `countsTask`: a limit counts what tools bring. */
export function promptBytesOf(request: Request, { thread, isRetry }: RunState, countsTask: boolean): PromptBytes {
  const { previous, bytes = 0, messages, transcript } = request.facts
  const newest = transcript.assistantMessages.at(-1)?.index ?? -1
  let size = countsTask ? 0 : undefined
  for (let at = newest + 1; size !== undefined && at < transcript.length; at++)
    for (const result of request.conversation.resultSizes?.(at) ?? []) size += result.bytes
  const isContinued = previous !== undefined
  const results = isContinued ? newResults(request, thread) : transcript.resultBytes
  return { bytes, messages, newest, isContinued, isRetry, results, size }
}

/** Returns the tokens of results in a prompt of `tokens` tokens, by tool; together they are no more than that. */
export function resultTokens(
  { bytes, isContinued, results }: PromptBytes,
  context: Thread['context'],
  tokens: number,
): readonly Named<number>[] {
  const known = isContinued ? context : undefined
  // What the provider keeps was a prompt, or an answer, before.
  const isLonger = known !== undefined && tokens > known.tokens
  const added = !isContinued ? tokens : isLonger ? tokens - known.tokens : estimateTokens(bytes)
  let size = 0
  for (const { amount } of results) size += amount
  const perByte = added / Math.max(1, bytes, size)
  const more = results.map(({ name, amount }) => ({ name, amount: amount * perByte }))
  const all = withAmounts(known?.results ?? [], more, plus)
  let sum = 0
  for (const { amount } of all) sum += amount
  const part = Math.min(1, tokens / Math.max(1, sum))
  return all.map(({ name, amount }) => ({ name, amount: amount * part }))
}

/**
 * Returns the tokens of a prompt, of `tokens` in all, that tools have brought since the answer before: what the prompt
 * has grown by, or a share by bytes where its history was changed. A prompt that was answered before brings nothing.
 */
export function addedTokens(of: PromptBytes, context: Thread['context'], tokens: number): number {
  const { bytes, messages, newest, isContinued, isRetry, size } = of
  if (!size) return 0
  const isLonger = context?.messages === newest && bytes - context.requestBytes >= size
  const grown = context && (isContinued || isLonger) ? tokens - context.tokens : 0
  if (grown > 0) return grown
  if (isRetry && (isContinued || context?.messages === messages)) return 0
  return isContinued ? estimateTokens(size) : Math.round((tokens * size) / Math.max(1, bytes, size))
}

/** The tokens of a prompt, and of results in it by tool. `share`: the part of the answer's cost that its prompt has. */
export interface PromptTokens {
  readonly tokens: number
  /** Those that tools have brought since the answer before; unset if no limit counts them. */
  readonly added: number | undefined
  readonly results: readonly Named<number>[]
  readonly share: number
}

/** Returns the input of an answer, and its cost, that results of tools have taken, by tool. */
export function countsByTool(
  { tokens, results, share }: Omit<PromptTokens, 'added'>,
  { input, cost = 0 }: Pick<CallUsage, 'input' | 'cost'>,
): readonly Named<Counts>[] {
  return results.map(({ name, amount }) => {
    const part = amount / Math.max(1, tokens)
    return { name, amount: { input: Math.floor(part * input), cost: part * share * cost } }
  })
}
