/**
 * Mends conversations whose reasoning was made for Governor's words, which their history does not show. Where the provider
 * refuses the history for that, it is asked once more to leave out such reasoning, and so it is from then on.
 */
import type { BoundThinking } from '../dialect/dialect.ts'
import { decodedAtOnce } from '../http/body.ts'
import { contentEncoding, headerOf, withHeaders } from '../http/headers.ts'
import type { Flow, Head, Receiver, UpstreamCall } from '../http/upstream.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import { faultOf } from './fault.ts'
import { withEdits } from './forward.ts'
import type { Services } from './services.ts'

/** Longer errors are passed on unread. */
const MAX_ERROR = 65_536

/** A request as it is judged and sent. */
export interface Sent {
  readonly evaluation: Evaluation
  readonly call: UpstreamCall
  /** The body as JSON text: the client's bytes, but for a content coding. */
  readonly bytes: Buffer
}

function bytesOf({ body }: UpstreamCall): Buffer | undefined {
  if (Buffer.isBuffer(body)) return body
  return Array.isArray(body) ? Buffer.concat(body) : undefined
}

/** The same call with its provider told to leave out what is bound; `undefined` where that can't be said. */
function loosened(bound: BoundThinking, call: UpstreamCall, bytes: Buffer): UpstreamCall | undefined {
  const loosening = bound.dropBoundThinking(bytes)
  if (!loosening) return undefined
  const changed = withEdits(call, bytes, loosening.edits)
  const { name, value } = loosening.header
  const sent = headerOf(call.headers, name)
  const headers = withHeaders(changed.headers, { [name]: sent ? `${sent},${value}` : value })
  return { ...changed, headers }
}

/** Reads an error of 400 before anybody else does, and has `mend` answer in its place where it is about bound reasoning. */
function state(receiver: Receiver, bound: BoundThinking, mend: () => boolean): Receiver {
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
        const coding = contentEncoding(held.head.headers)
        const body = Buffer.concat(held.chunks)
        const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, 16 * MAX_ERROR)
        if (plain && bound.isBoundThinkingError(plain) && mend()) return
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

/** Tells the client that its request was mended. */
function recovered(receiver: Receiver): Receiver {
  return {
    ...receiver,
    start(head, flow) {
      const headers = withHeaders(head.headers, { 'x-governor-recovered': 'thinking' })
      receiver.start(head.status < 400 ? { ...head, headers } : head, flow)
    },
  }
}

/** Remembers of each altered request that was answered that the model was shown what no client's history holds. */
function noting(receiver: Receiver, note: () => void): Receiver {
  return {
    ...receiver,
    start(head, flow) {
      if (head.status < 400) note()
      receiver.start(head, flow)
    },
  }
}

/** The way of a request of a dialect whose models bind their reasoning to the prompt it was made for. */
export function watchBound(
  services: Services,
  exchange: Exchange,
  bound: BoundThinking,
  sent: Sent,
): Exchange {
  const { evaluation, call, bytes } = sent
  const { noticeSent } = evaluation.runState
  let { dropsThinking } = evaluation.runState
  const forget = () => services.emit({ kind: 'failed_open', reason: 'store' })
  const looseOf = (made: UpstreamCall): UpstreamCall | undefined => {
    try {
      const body = made.body === call.body ? bytes : bytesOf(made)
      return body && loosened(bound, made, body)
    } catch (error) {
      // Law 2: what goes wrong in mending a request leaves it as it was.
      services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error as Error) })
      return undefined
    }
  }
  return exchange.sendingBy((made, receiver) => {
    const noted =
      made.body === call.body
        ? receiver
        : noting(receiver, () => void evaluation.handle.noteInjected().catch(forget))
    if (dropsThinking) return exchange.call(looseOf(made) ?? made, noted)
    if (!noticeSent) return exchange.call(made, noted)
    let off = () => {}
    const mend = (): boolean => {
      const loose = looseOf(made)
      if (!loose) return false
      dropsThinking = true
      evaluation.handle.dropBoundThinking().catch(forget)
      off = exchange.call(loose, recovered(noted))
      return true
    }
    off = exchange.call(made, state(noted, bound, mend))
    return () => off()
  })
}
