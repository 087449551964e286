/** Results of blocked calls, for which a provider that keeps the conversation still waits. */
import { NOT_EXECUTED } from '../../core/loop/notice.ts'
import type { BlockedMessage, BufferedCalls } from '../../dialect/dialect.ts'
import type { Turn } from '../turn.ts'

/** Returns the results that a request must add when it continues from another response. */
function pendingAfter({ sent }: Turn, round: BlockedMessage, blocked: ReadonlySet<number>): readonly string[] {
  // A conversation object has them already.
  return sent.isConversation ? [] : (sent.pendingResults?.(round, blocked) ?? [])
}

/** Saves the results of a response's blocked calls. `before`: earlier responses, with all calls blocked. */
export async function savePartOfResults(
  x: Turn,
  before: readonly BlockedMessage[],
  round: BlockedMessage,
  blocked: ReadonlySet<number>,
): Promise<void> {
  await replaceBy(x, before, round.buffered, pendingAfter(x, round, blocked))
  await saveResults(x, round, blocked)
}

/** Saves the results of calls that the client has not seen, for its next request. */
export async function saveResults(
  { sent, handle }: Turn,
  round: BlockedMessage,
  blocked: ReadonlySet<number>,
): Promise<void> {
  const pendingResults = sent.pendingResults?.(round, blocked) ?? []
  const place = sent.isConversation ? sent.previous : round.buffered.id
  if (pendingResults.length === 0 || place === undefined) return
  await handle.savePendingResults(place, { pendingResults })
}

/** Redirects requests from blocked responses to the response after them, which waits for these results. */
export async function replaceBy(
  { sent, handle }: Turn,
  rounds: readonly BlockedMessage[],
  buffered: BufferedCalls | undefined,
  pendingResults: readonly string[] = [],
): Promise<void> {
  const redirectTo = buffered?.id
  if (redirectTo === undefined || !sent.isKept) return
  const pending = pendingResults.length === 0 ? { redirectTo } : { redirectTo, pendingResults }
  for (const { buffered: before } of rounds) {
    if (before.id === undefined || before.id === redirectTo) continue
    await handle.savePendingResults(before.id, pending)
  }
}

/**
 * Redirects requests after a stream that ends a run: the stream has the id of the first of its responses, and a request
 * continues from the last one. No call in that is executed.
 */
export async function settleStream(
  x: Turn,
  rounds: readonly BlockedMessage[],
  tries: readonly BufferedCalls[],
): Promise<void> {
  const unanswered = tries.map(
    (buffered): BlockedMessage => ({ buffered, results: buffered.calls.map(() => NOT_EXECUTED) }),
  )
  const all = [...rounds, ...unanswered]
  const last = all.at(-1)
  if (!last) return
  const blocked = new Set(last.results.keys())
  await saveResults(x, last, blocked)
  await replaceBy(x, all, last.buffered, pendingAfter(x, last, blocked))
}

/**
 * Returns the id for an answer that Governor gives without the provider: the client continues from it, and its next request
 * then brings the results that the provider missed. `undefined` if the provider keeps no conversation.
 */
export async function standIn({ services, sent, handle }: Turn): Promise<string | undefined> {
  const skipped = sent.skippedResults?.(services.newId())
  if (!skipped) return undefined
  const { id, ...pending } = skipped
  const place = sent.isConversation ? sent.previous : id
  if (place === undefined) return undefined
  await handle.savePendingResults(place, pending)
  return id
}
