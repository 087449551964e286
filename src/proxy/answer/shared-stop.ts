/**
 * Asks for the last answer of a run once, however many of its requests reach the limit at the same time, and at how
 * many replicas.
 */
import { SHARED, sessionKey, type ValueKind } from '../../store/store.ts'
import { giveUp } from '../hold-stop.ts'
import type { Services } from '../services.ts'
import type { Turn } from '../turn.ts'

/** Milliseconds for which a replica alone may ask for a last answer; after that another one asks too. */
const CLAIM_MS = 30_000
/** Milliseconds between two looks at a run that another replica ends, where no message about it comes. */
const LOOK_MS = 1_000

/** Which replica's request asks for a last answer, and until when, in milliseconds since the epoch; 0: it has asked. */
type Claim = { readonly by: string; readonly until: number } | undefined

const CLAIMS: ValueKind<Claim> = { name: 'stop_claims', ttl: CLAIM_MS, empty: undefined }

/** Changes who may ask for the last answer of a thread. Returns false while another replica asks. */
async function claim(
  { store, emit }: Services,
  thread: string,
  by: string,
  change: (known: Claim) => Claim,
): Promise<boolean> {
  try {
    return await store.updateValue(CLAIMS, sessionKey(SHARED, thread), (known) => {
      const value = change(known)
      return { value, result: value === undefined || value.by === by }
    })
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return true
  }
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

/**
 * Returns the request as it is to be handled; `undefined` once the client has left. If another request of its thread
 * is being stopped, it waits for that one and is evaluated again: then the run is over and has an answer. If the other
 * one got none, it asks itself.
 */
export async function shareStop(turn: Turn, evaluateAgain: () => Promise<Turn | undefined>): Promise<Turn | undefined> {
  const { services, exchange } = turn
  const { stops } = services
  const by = services.newId()
  let current = turn
  let hasWaited = false
  for (;;) {
    const { decision, handle, runState } = current
    const { apiId } = handle.names
    // A recorded answer that this request cannot get, as a call that is an answer.
    const isRecorded = hasWaited && runState.finalAnswer !== undefined
    if (decision.kind !== 'stop' || apiId === undefined || isRecorded) return current
    const thread = `${apiId} ${runState.thread.number}`
    const { response } = exchange
    const end = new Promise<void>((resolve) => {
      if (response.closed) resolve()
      else response.once('close', resolve)
    })
    const other = stops.get(thread)
    let isMine = false
    if (!other) {
      stops.set(thread, end)
      const now = services.now()
      let wasAsked = false
      const take = (known: Claim) => {
        wasAsked = known !== undefined
        return known && known.until > now ? known : { by, until: now + CLAIM_MS }
      }
      if (await claim(services, thread, by, take)) {
        end.then(() => {
          stops.delete(thread)
          // Lets the next request ask. A claim that the store keeps runs out.
          return claim(services, thread, by, (known) => (known?.by === by ? { by, until: 0 } : known))
        })
        if (!wasAsked) return current
        // The answer may have been recorded after this request was evaluated.
        isMine = true
      } else {
        await untilChanged(current, end)
        stops.delete(thread)
      }
    } else await Promise.race([other, end])
    hasWaited = true
    await giveUp(current)
    if (exchange.isClientGone()) return undefined
    current = (await evaluateAgain()) ?? current
    if (isMine) return current
  }
}
