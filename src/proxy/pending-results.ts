/** What a provider that keeps the conversation waits for when calls of it were refused that the client has not seen. */
import { NOT_EXECUTED } from '../core/loop/notice.ts'
import type { HeldCalls, RefusedRound } from '../dialect/dialect.ts'
import type { Judgement } from './evaluate.ts'
import type { ProxyContext } from './services.ts'

/** What is owed to whoever goes on from another response than this one; in a conversation it is owed there. */
function owedAfter(
  { request }: Judgement,
  round: RefusedRound,
  refused: ReadonlySet<number>,
): readonly string[] {
  return request.isConversation ? [] : (request.owed?.(round, refused) ?? [])
}

/** Of a response with these calls the client has seen some: it goes on from it, or from one that was refused before it. */
export async function owePart(
  context: ProxyContext,
  judgement: Judgement,
  before: readonly RefusedRound[],
  round: RefusedRound,
  refused: ReadonlySet<number>,
): Promise<void> {
  await replaceBy(context, judgement, before, round.held, owedAfter(judgement, round, refused))
  await oweResults(context, judgement, round, refused)
}

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

/** Whoever goes on from a response that was refused goes on from the one that came after it, and with what that waits for. */
export async function replaceBy(
  context: ProxyContext,
  judgement: Judgement,
  rounds: readonly RefusedRound[],
  held: HeldCalls | undefined,
  owed: readonly string[] = [],
): Promise<void> {
  const as = held?.id
  if (as === undefined || !judgement.request.isKept) return
  const debt = owed.length === 0 ? { as } : { as, owed }
  for (const { held: before } of rounds) {
    if (before.id === undefined || before.id === as) continue
    await judgement.remembered
      .owe(before.id, debt)
      .catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
  }
}

/**
 * A stream that ends a run names the first of the responses it is made of: whoever goes on from that goes on from the
 * last one. Nothing is executed of what that calls.
 */
export async function settleStream(
  context: ProxyContext,
  judgement: Judgement,
  rounds: readonly RefusedRound[],
  tries: readonly HeldCalls[],
): Promise<void> {
  const asked = tries.map((held): RefusedRound => ({ held, results: held.calls.map(() => NOT_EXECUTED) }))
  const all = [...rounds, ...asked]
  const last = all.at(-1)
  if (!last) return
  const refused = new Set(last.results.keys())
  await oweResults(context, judgement, last, refused)
  await replaceBy(context, judgement, all, last.held, owedAfter(judgement, last, refused))
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
