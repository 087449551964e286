/**
 * Asks for the last answer of a run once, however many of its requests reach the limit at the same time, and at how many
 * replicas.
 */
import type { ServerResponse } from 'node:http'
import { SHARED, sessionKey, type ValueKind } from '../store/store.ts'
import { giveUp } from './hold-stop.ts'
import type { Services } from './services.ts'
import type { Turn } from './turn.ts'

/** Milliseconds for which a replica alone may ask for a last answer; after that another one asks too. */
const CLAIM_MS = 30_000
/** Milliseconds between two looks at a run that another replica ends, where no message about it comes. */
const LOOK_MS = 1_000

/** Which replica's request asks for a last answer, and until when, in milliseconds since the epoch. */
const CLAIMS: ValueKind<{ readonly by: string; readonly until: number } | undefined> = {
  name: 'stop_claims',
  ttl: CLAIM_MS,
  empty: undefined,
}

function closed(response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    if (response.closed) resolve()
    else response.once('close', resolve)
  })
}

/** Returns false while another replica asks for the last answer of a thread. */
async function claim({ store, now, emit }: Services, thread: string, by: string): Promise<boolean> {
  const at = now()
  try {
    return await store.updateValue(CLAIMS, sessionKey(SHARED, thread), (known) =>
      known && known.until > at
        ? { value: known, result: known.by === by }
        : { value: { by, until: at + CLAIM_MS }, result: true },
    )
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return true
  }
}

/** Lets the next request ask. A claim that the store keeps runs out. */
async function release({ store, emit }: Services, thread: string, by: string): Promise<void> {
  const change = (known: { readonly by: string; readonly until: number } | undefined) => ({
    value: known?.by === by ? undefined : known,
    result: undefined,
  })
  await store
    .updateValue(CLAIMS, sessionKey(SHARED, thread), change)
    .catch(() => emit({ kind: 'failed_open', reason: 'store' }))
}

/** Waits until the session has changed, at most a second, or the client has left. */
async function untilChanged({ handle }: Turn, end: Promise<void>): Promise<void> {
  let changed: () => void = () => undefined
  const change = new Promise<void>((resolve) => {
    changed = resolve
  })
  const timer = setTimeout(changed, LOOK_MS)
  const unsubscribe = await handle.question.onChange(changed)
  await Promise.race([change, end])
  clearTimeout(timer)
  await unsubscribe()
}

/** Returns the thread of a request that is to be stopped; `undefined` if nobody can share its answer. */
function threadOf({ decision, handle, runState: { thread } }: Turn): string | undefined {
  const session = handle.names.apiId
  return decision.kind === 'stop' && session !== undefined ? `${session} ${thread.number}` : undefined
}

/**
 * Returns the request as it is to be handled; `undefined` once the client has left. If another request of its thread is being
 * stopped, it waits for that one and is evaluated again: then the run is over and has an answer. If the other one got none, it
 * asks itself.
 */
export async function shareStop(
  turn: Turn,
  evaluateAgain: () => Promise<Turn | undefined>,
): Promise<Turn | undefined> {
  const { services, exchange } = turn
  const { stops } = services
  const by = services.newId()
  let current = turn
  let hasWaited = false
  for (;;) {
    const thread = threadOf(current)
    // A recorded answer that this request cannot get, as a call that is an answer.
    const isRecorded = hasWaited && current.runState.finalAnswer !== undefined
    if (thread === undefined || isRecorded) return current
    const end = closed(exchange.response)
    const other = stops.get(thread)
    if (!other) {
      stops.set(thread, end)
      if (await claim(services, thread, by)) {
        end.then(() => {
          stops.delete(thread)
          return release(services, thread, by)
        })
        return current
      }
      await untilChanged(current, end)
      stops.delete(thread)
    } else await Promise.race([other, end])
    hasWaited = true
    await giveUp(current)
    if (exchange.isClientGone()) return undefined
    current = (await evaluateAgain()) ?? current
  }
}
