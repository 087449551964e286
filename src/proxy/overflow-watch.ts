/**
 * Stands between the upstream and whatever takes its responses, on every guarded path. A refusal is held until it is
 * whole, at most 64 KB of it for at most a second: one that says that something is too large is mended by asking again where Governor can,
 * or says what it means; any other goes on as it came. Answers go on at once; only a JSON body waits for its first
 * byte, and an error event in a stream for its own end.
 */
import { NO_CONTEXTS, reduce, type SessionContexts } from '../core/context.ts'
import type { Overflow } from '../core/overflow.ts'
import { type Classified, classify } from '../overflow/classify.ts'
import { type Annotation, annotated, canonicalEvent, isInputTooLarge } from './annotation.ts'
import type { ProxyContext } from './context.ts'
import { watchErrorFrames } from './error-frames.ts'
import { codingOf, isEventStream, type RawHeaders, withHeaders } from './headers.ts'
import type { Judgement } from './judge.ts'
import { modelIn, recovered } from './overflow-recovery.ts'
import { explained, type Held, mayBeError, meaningOf, parsed, replay, typeOf } from './refusal.ts'
import type { Route } from './route.ts'
import { faultOf, type Watch } from './trip.ts'
import type { Receiver, UpstreamCall } from './upstream.ts'
import { keptName, type ModelAt } from './windows.ts'

export interface OverflowWatch extends Watch {
  /** Tells what the request was judged to be. */
  judged(judgement: Judgement): void
}

/** A refusal is small; a larger body is relayed as it comes. */
const MAX_REFUSAL = 65_536
/** Milliseconds for which a client waits for what the upstream has begun to say: a slow one is relayed as it comes. */
const MAX_HELD_MS = 1_000

export function createOverflowWatch(context: ProxyContext, route: Route): OverflowWatch {
  const { emit, windows } = context
  const { dialect, upstream } = route
  let judgement: Judgement | undefined

  const modelAt = (call: UpstreamCall): ModelAt => ({
    upstream,
    model: judgement?.request.conversation.model ?? modelIn(call) ?? '',
  })

  const fault = (error: Error) => emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  const remember = (change: (contexts: SessionContexts) => SessionContexts): void => {
    judgement?.remembered.contexts(change).catch(() => emit({ kind: 'failed_open', reason: 'store' }))
  }

  /** Takes an overflow into account: what the base is now, and what this session may count on. */
  const noted = (of: ModelAt, classified: Classified): Annotation => {
    const { overflow } = classified
    windows.learn(of, overflow)
    const refusal = {
      upstream: upstream.name,
      model: keptName(of.model),
      overflow,
      now: context.now(),
      ttl: context.policies().overflow.effectiveTtl,
    }
    const before = judgement?.position.reductions ?? NO_CONTEXTS.reductions
    remember((contexts) => ({
      ...contexts,
      reductions: reduce(contexts.reductions, refusal),
      overflows: contexts.overflows + 1,
    }))
    emit({ kind: 'overflow', upstream: upstream.name, recovery: overflow.recovery, quirk: classified.quirk })
    return { classified, base: windows.base(of), effective: windows.effective(of, reduce(before, refusal)) }
  }

  /** Asks again with what fits; should that fail too, the client gets its own refusal. */
  const askAgain = (
    again: UpstreamCall,
    overflow: Overflow,
    receiver: Receiver,
    send: (call: UpstreamCall, receiver: Receiver) => void,
    giveUp: () => void,
  ): void => {
    let isRefused = false
    const failed = () => {
      emit({ kind: 'recovered', recovery: overflow.recovery, outcome: 'refused' })
      giveUp()
    }
    send(again, {
      ...receiver,
      start(head, flow) {
        isRefused = head.status >= 400
        if (isRefused) return
        emit({ kind: 'recovered', recovery: overflow.recovery, outcome: 'answered' })
        const headers = withHeaders(head.headers, { 'x-governor-recovered': overflow.recovery })
        receiver.start({ ...head, headers }, flow)
      },
      data: (chunk) => (isRefused ? undefined : receiver.data(chunk)),
      end: (trailers) => (isRefused ? failed() : receiver.end(trailers)),
      fail(failure) {
        if (failure.code === 'aborted') receiver.fail(failure)
        else failed()
      },
    })
  }

  const settle = async (
    call: UpstreamCall,
    held: Held,
    trailers: RawHeaders,
    receiver: Receiver,
    send: (call: UpstreamCall, receiver: Receiver) => void,
  ): Promise<void> => {
    let giveUp: (() => void) | undefined
    let again: UpstreamCall | undefined
    let overflow: Overflow | undefined
    // Law 2: a fault in understanding a refusal leaves it as it came.
    try {
      const { quirks, canonical } = context.policies().overflow
      const found = meaningOf(held, quirks)
      if (found) {
        // What is known of the model is told, though it takes a moment the first time.
        if (!context.catalogue.isLoaded) await context.catalogue.load().catch(() => undefined)
        overflow = found.classified.overflow
        const { head, body } = explained(
          held,
          found.plain,
          noted(modelAt(call), found.classified),
          canonical ? dialect : undefined,
        )
        giveUp = () => {
          receiver.start(head, held.flow)
          receiver.data(body)
          receiver.end(trailers)
        }
        again = held.head.status >= 400 ? recovered(call, overflow, context.policies().overflow) : undefined
      }
    } catch (error) {
      fault(error as Error)
    }
    if (giveUp && again && overflow) return askAgain(again, overflow, receiver, send, giveUp)
    if (giveUp) return giveUp()
    replay(held, receiver)
    receiver.end(trailers)
  }

  const changeFrame =
    (call: UpstreamCall) =>
    (frame: Buffer, sent: number): Buffer => {
      const rest = frame.subarray(sent)
      try {
        const data = frame.indexOf('data:')
        if (data === -1) return rest
        let start = data + 'data:'.length
        if (frame[start] === 0x20) start++
        const line = frame.indexOf('\n', start)
        let end = line === -1 ? frame.length : line
        if (frame[end - 1] === 0x0d) end--
        const json = frame.subarray(start, end)
        const { quirks, canonical } = context.policies().overflow
        const classified = classify({ status: 200, body: parsed(json.toString()) }, quirks)
        if (!classified) return rest
        const annotation = noted(modelAt(call), classified)
        const changed =
          dialect && canonical && isInputTooLarge(annotation)
            ? canonicalEvent(json, dialect, annotation)
            : annotated(json, annotation)
        if (!changed) return rest
        const whole = Buffer.concat([frame.subarray(0, start), changed, frame.subarray(end)])
        // What has gone can't be changed any more.
        return whole.subarray(0, sent).equals(frame.subarray(0, sent)) ? whole.subarray(sent) : rest
      } catch (error) {
        fault(error as Error)
        return rest
      }
    }

  const watchStream = (call: UpstreamCall, receiver: Receiver): Pick<Receiver, 'data' | 'end' | 'fail'> => {
    const frames = watchErrorFrames(changeFrame(call))
    const flush = () => {
      for (const piece of frames.end()) receiver.data(piece)
    }
    return {
      data(chunk) {
        for (const piece of frames.push(chunk)) receiver.data(piece)
      },
      end(trailers) {
        flush()
        receiver.end(trailers)
      },
      fail(failure) {
        flush()
        receiver.fail(failure)
      },
    }
  }

  return {
    judged(known) {
      judgement = known
    },
    watch(call, receiver, send) {
      if (!context.policies().overflow.enabled) return receiver
      let held: Held | undefined
      /** An answer in JSON whose first bytes are still to come: they tell whether it is an error after all. */
      let isUndecided = false
      let stream: Pick<Receiver, 'data' | 'end' | 'fail'> | undefined
      let patience: NodeJS.Timeout | undefined
      const release = (): Held | undefined => {
        clearTimeout(patience)
        const whole = held
        held = undefined
        isUndecided = false
        return whole
      }
      const letGo = () => {
        const part = release()
        if (part) replay(part, receiver)
      }
      return {
        inform: (head) => receiver.inform?.(head),
        start(head, flow) {
          const type = typeOf(head)
          // No model's answer is plain text: that is what proxies make of an error.
          const mayTell = type.includes('json') || type.startsWith('text/plain')
          isUndecided = head.status === 200 && mayTell && codingOf(head.headers) === 'identity'
          if (head.status >= 400 || isUndecided) {
            held = { head, flow, chunks: [], length: 0 }
            patience = setTimeout(letGo, MAX_HELD_MS)
            return
          }
          const isStream = isEventStream(head.headers) && codingOf(head.headers) === 'identity'
          if (isStream) stream = watchStream(call, receiver)
          receiver.start(head, flow)
        },
        data(chunk) {
          if (stream) return stream.data(chunk)
          if (!held) return receiver.data(chunk)
          held.chunks.push(chunk)
          held.length += chunk.length
          const isAnswer = isUndecided && !mayBeError(held.head, chunk)
          isUndecided = false
          if (isAnswer || held.length > MAX_REFUSAL) letGo()
        },
        end(trailers) {
          if (stream) return stream.end(trailers)
          if (!held) return receiver.end(trailers)
          const whole = release()
          if (!whole) return
          settle(call, whole, trailers, receiver, send).catch((error: Error) => {
            fault(error)
            const message = 'Governor failed on this answer. Its log names the fault.'
            receiver.fail({ status: 502, code: 'upstream_broken', message, cause: error })
          })
        },
        fail(failure) {
          letGo()
          if (stream) stream.fail(failure)
          else receiver.fail(failure)
        },
      }
    },
  }
}
