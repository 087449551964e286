/** What a provider that keeps the conversation waits for when calls of it were refused that the client has not seen. */
import type { HeldCalls, RefusedRound } from '../dialect/dialect.ts'
import type { ProxyContext } from './context.ts'
import type { Judgement } from './judge.ts'

/** A provider that keeps the conversation waits for results of calls that the client has not seen. */
export async function oweResults(
  context: ProxyContext,
  judgement: Judgement,
  round: RefusedRound,
  refused: ReadonlySet<number>,
): Promise<void> {
  const { request } = judgement
  const owed = request.owed?.(round, refused) ?? []
  const place = request.isConversation ? request.previous : round.held.id
  if (owed.length === 0 || place === undefined) return
  await judgement.remembered
    .owe(place, { owed })
    .catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
}

/** Whoever goes on from a response that was refused goes on from the one that came after it. */
export async function replaceBy(
  context: ProxyContext,
  judgement: Judgement,
  rounds: readonly RefusedRound[],
  held: HeldCalls | undefined,
): Promise<void> {
  const as = held?.id
  if (as === undefined || !judgement.request.isKept) return
  for (const { held: before } of rounds) {
    if (before.id === undefined) continue
    await judgement.remembered
      .owe(before.id, { as })
      .catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
  }
}

/**
 * An answer of Governor's own to a request that the provider has not seen: returns the id it must have, by which the
 * client can go on, and the provider then gets what it missed. `undefined` where no provider keeps anything.
 */
export async function standIn(context: ProxyContext, judgement: Judgement): Promise<string | undefined> {
  const { request } = judgement
  const unsent = request.unsent?.(context.newId())
  if (!unsent) return undefined
  const { id, ...debt } = unsent
  const place = request.isConversation ? request.previous : id
  if (place === undefined) return undefined
  await judgement.remembered
    .owe(place, debt)
    .catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
  return id
}
