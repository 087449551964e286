/** Mends conversations whose reasoning was made for Governor's words, which their history does not show. */
import type { Dialect } from '../dialect/dialect.ts'
import { applyEdits } from '../json/edit.ts'
import { decodedAtOnce } from './body.ts'
import type { ProxyContext } from './context.ts'
import { forward, withEdits } from './forward.ts'
import { headerOf, withHeaders } from './headers.ts'
import type { Judgement } from './judge.ts'
import type { OwnHeaders } from './reply.ts'
import { codingOf } from './tap.ts'
import { faultOf, type Trip } from './trip.ts'
import type { Flow, Head, Receiver, UpstreamCall } from './upstream.ts'

/** Longer errors are passed on unread. */
const MAX_ERROR = 65_536

/** The header that names the parts of an API that a request asks for beyond its version. */
const BETA = 'anthropic-beta'

/** A request as it is judged and sent. */
export interface Sent {
  readonly judgement: Judgement
  readonly call: UpstreamCall
  readonly bytes: Buffer
}

/** The request with its provider told to leave out what is bound to another prompt; `undefined` where that can't be said. */
function loosened(dialect: Dialect, { judgement, call, bytes }: Sent): Sent | undefined {
  const loosening = judgement.request.loosen?.()
  if (!loosening) return undefined
  const changed = applyEdits(bytes, loosening.edits)
  const request = dialect.read(changed)
  if (!request) return undefined
  const asked = headerOf(call.headers, BETA)
  const beta = asked ? `${asked},${loosening.beta}` : loosening.beta
  const plain = withEdits(call, changed, [])
  return {
    judgement: { ...judgement, request },
    call: { ...plain, headers: withHeaders(plain.headers, { [BETA]: beta }) },
    bytes: changed,
  }
}

/** Law 2: what goes wrong in mending a request leaves the provider's answer as it was. */
export function loosenedSafely(context: ProxyContext, dialect: Dialect, sent: Sent): Sent | undefined {
  try {
    return loosened(dialect, sent)
  } catch (error) {
    context.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error as Error) })
    return undefined
  }
}

/** Reads an error of 400 before the client gets it, and has `mend` answer in its place where it is about bound reasoning. */
function reading(receiver: Receiver, dialect: Dialect, mend: () => boolean): Receiver {
  let held: { readonly head: Head; readonly flow: Flow; chunks: Buffer[]; length: number } | undefined
  const release = () => {
    if (!held) return
    const { head, flow, chunks } = held
    held = undefined
    receiver.start(head, flow)
    for (const chunk of chunks) receiver.data(chunk)
  }
  return {
    ...receiver,
    start(head, flow) {
      if (head.status === 400) held = { head, flow, chunks: [], length: 0 }
      else receiver.start(head, flow)
    },
    data(chunk) {
      if (!held) return receiver.data(chunk)
      held.chunks.push(chunk)
      held.length += chunk.length
      if (held.length > MAX_ERROR) release()
    },
    end(trailers) {
      if (held) {
        const coding = codingOf(held.head)
        const body = Buffer.concat(held.chunks)
        const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, 16 * MAX_ERROR)
        if (plain && dialect.isBound?.(plain) && mend()) return
        release()
      }
      receiver.end(trailers)
    },
    fail(failure) {
      release()
      receiver.fail(failure)
    },
  }
}

/** Remembers that the model was shown what the client's history does not hold. */
export function noteSaid(context: ProxyContext, judgement: Judgement): void {
  judgement.said().catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
}

/**
 * Sends a request on as it is or with a notice, as `forward` does. Where the provider refuses the client's history for what
 * Governor has said in it before, it is asked once more to leave out the reasoning that was made for that.
 */
export function forwardBound(
  context: ProxyContext,
  trip: Trip,
  dialect: Dialect,
  sent: Sent,
  own: OwnHeaders,
): void {
  const { judgement, call, bytes } = sent
  const mend = (): boolean => {
    const loose = loosenedSafely(context, dialect, sent)
    if (!loose) return false
    judgement.loosen().catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
    const headers = { ...own, 'x-governor-recovered': 'thinking' }
    forward(context, trip, loose.judgement, loose.call, loose.bytes, headers)
    return true
  }
  const { hasSaid, isLoose } = judgement.position
  const watched: Trip = {
    ...trip,
    call(made, receiver) {
      const noting: Receiver =
        made === call
          ? receiver
          : {
              ...receiver,
              start(head, flow) {
                if (head.status < 400) noteSaid(context, judgement)
                receiver.start(head, flow)
              },
            }
      return trip.call(made, hasSaid && !isLoose ? reading(noting, dialect, mend) : noting)
    },
  }
  forward(context, watched, judgement, call, bytes, own)
}
