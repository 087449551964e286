/** What a provider that keeps the conversation waits for when calls of it were refused that the client has not seen. */
import { NOT_EXECUTED } from '../core/loop/notice.ts'
import type { BlockedMessage, BufferedCalls } from '../dialect/dialect.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'

/** Results that a request going on from another response has to bring along; a conversation has them already. */
function pendingAfter(
  { evaluation }: EvaluatedRequest,
  round: BlockedMessage,
  refused: ReadonlySet<number>,
): readonly string[] {
  const { request } = evaluation
  return request.isConversation ? [] : (request.pendingResults?.(round, refused) ?? [])
}

/** Of a response with these calls the client has seen some: it goes on from it, or from one that was refused before it. */
export async function savePartOfResults(
  x: EvaluatedRequest,
  before: readonly BlockedMessage[],
  round: BlockedMessage,
  refused: ReadonlySet<number>,
): Promise<void> {
  await replaceBy(x, before, round.buffered, pendingAfter(x, round, refused))
  await saveResults(x, round, refused)
}

/** A provider that keeps the conversation waits for results of calls that the client has not seen. */
export async function saveResults(
  { services, evaluation }: EvaluatedRequest,
  round: BlockedMessage,
  refused: ReadonlySet<number>,
): Promise<void> {
  const { request } = evaluation
  const pendingResults = request.pendingResults?.(round, refused) ?? []
  const place = request.isConversation ? request.previous : round.buffered.id
  if (pendingResults.length === 0 || place === undefined) return
  await evaluation.handle
    .savePendingResults(place, { pendingResults })
    .catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
}

/** Whoever goes on from a response that was refused goes on from the one that came after it, and with what that waits for. */
export async function replaceBy(
  { services, evaluation }: EvaluatedRequest,
  rounds: readonly BlockedMessage[],
  buffered: BufferedCalls | undefined,
  pendingResults: readonly string[] = [],
): Promise<void> {
  const redirectTo = buffered?.id
  if (redirectTo === undefined || !evaluation.request.isKept) return
  const pending = pendingResults.length === 0 ? { redirectTo } : { redirectTo, pendingResults }
  for (const { buffered: before } of rounds) {
    if (before.id === undefined || before.id === redirectTo) continue
    await evaluation.handle
      .savePendingResults(before.id, pending)
      .catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
  }
}

/**
 * A stream that ends a run names the first of the responses it is made of: whoever goes on from that goes on from the
 * last one. Nothing is executed of what that calls.
 */
export async function settleStream(
  x: EvaluatedRequest,
  rounds: readonly BlockedMessage[],
  tries: readonly BufferedCalls[],
): Promise<void> {
  const asked = tries.map(
    (buffered): BlockedMessage => ({ buffered, results: buffered.calls.map(() => NOT_EXECUTED) }),
  )
  const all = [...rounds, ...asked]
  const last = all.at(-1)
  if (!last) return
  const refused = new Set(last.results.keys())
  await saveResults(x, last, refused)
  await replaceBy(x, all, last.buffered, pendingAfter(x, last, refused))
}

/**
 * An answer of Governor's own to a request that the provider has not seen: returns the id it must have, by which the
 * client can go on, and the provider then gets what it missed. `undefined` where no provider keeps anything.
 */
export async function standIn({ services, evaluation }: EvaluatedRequest): Promise<string | undefined> {
  const { request } = evaluation
  const skipped = request.skippedResults?.(services.newId())
  if (!skipped) return undefined
  const { id, ...pending } = skipped
  const place = request.isConversation ? request.previous : id
  if (place === undefined) return undefined
  await evaluation.handle
    .savePendingResults(place, pending)
    .catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
  return id
}
