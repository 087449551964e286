/**
 * Stands between the upstream and whatever takes its responses, on every guarded path. A refusal is held until it is
 * whole, at most 64 KB of it for at most a second: one that says that something is too large is mended by asking again where Governor can,
 * or says what it means; any other goes on as it came. Answers go on at once; only a JSON body waits for its first
 * byte, and an error event in a stream for its own end.
 */
import { NO_CONTEXTS, reduce, type SessionContexts } from '../core/context-window.ts'
import type { Overflow } from '../core/overflow.ts'
import { contentEncoding, type RawHeaders, withHeaders } from '../http/headers.ts'
import type { Failure, Flow, Head, Receiver, UpstreamCall } from '../http/upstream.ts'
import { type Classified, classify } from '../overflow/classify.ts'
import {
  type Annotation,
  annotated,
  canonicalEvent,
  isInputTooLarge,
  parsed,
} from '../overflow/http/annotate.ts'
import { explained, type Held, mayBeError, meaningOf, replay, typeOf } from '../overflow/http/error-body.ts'
import { type ErrorFrames, watchErrorFrames } from '../overflow/http/error-frames.ts'
import { bodyOf, modelIn, recovered } from '../overflow/http/recover.ts'
import { keptName, type ModelAt } from '../overflow/windows.ts'
import type { Watch } from './begin-exchange.ts'
import { errorReplyOf, noteOutcome } from './error-streak.ts'
import type { Evaluation } from './evaluate.ts'
import { faultOf } from './fault.ts'
import type { Route } from './route.ts'
import type { Services } from './services.ts'

export interface OverflowWatch extends Watch {
  /** Tells what the request was judged to be. */
  evaluated(evaluation: Evaluation): void
}

/** A refusal is small; a larger body is relayed as it comes. */
const MAX_REFUSAL = 65_536
/** Milliseconds for which a client waits for what the upstream has begun to say: a slow one is relayed as it comes. */
const MAX_HELD_MS = 1_000

type Send = (call: UpstreamCall, receiver: Receiver) => void

export function createOverflowWatch(services: Services, route: Route): OverflowWatch {
  return new RequestWatch(services, route)
}

/** What is known of one request whose responses are watched. */
class RequestWatch implements OverflowWatch {
  readonly #services: Services
  readonly #route: Route
  #evaluation: Evaluation | undefined

  constructor(services: Services, route: Route) {
    this.#services = services
    this.#route = route
  }

  evaluated(known: Evaluation): void {
    this.#evaluation = known
  }

  watch(call: UpstreamCall, receiver: Receiver, send: Send): Receiver {
    const { overflow, storm } = this.#services.policies()
    if (!overflow.enabled && !storm.enabled) return receiver
    return new WatchedResponse(this, call, receiver, send, overflow.enabled)
  }

  /** A call of the provider brought a response with this status, or none (502). */
  outcome(status: number, head?: Head, chunks: readonly Buffer[] = []): void {
    if (!this.#evaluation) return
    const { api } = this.#route
    const error = () =>
      errorReplyOf(head ?? { status, reason: '', headers: [] }, chunks, api, this.#services.now())
    noteOutcome(this.#services, this.#evaluation, status, error)
  }

  #modelAt(call: UpstreamCall): ModelAt {
    const model = this.#evaluation?.request.conversation.model ?? this.#modelIn(call) ?? ''
    return { upstream: this.#route.upstream, model }
  }

  #modelIn(call: UpstreamCall): string | undefined {
    const { dialect, asked } = this.#route
    return dialect && modelIn(dialect, asked, call)
  }

  fault(error: Error): void {
    this.#services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  }

  #remember(change: (contexts: SessionContexts) => SessionContexts): void {
    this.#evaluation?.handle
      .changeContexts(change)
      .catch(() => this.#services.emit({ kind: 'failed_open', reason: 'store' }))
  }

  /** Takes an overflow into account: what the base is now, and what this session may count on. */
  #noted(of: ModelAt, classified: Classified): Annotation {
    const { windows, emit } = this.#services
    const { overflow } = classified
    const { upstream } = this.#route
    windows.learn(of, overflow)
    const refusal = {
      upstream: upstream.name,
      model: keptName(of.model),
      overflow,
      now: this.#services.now(),
      ttl: this.#services.policies().overflow.effectiveTtl,
    }
    const before = this.#evaluation?.runState.reductions ?? NO_CONTEXTS.reductions
    this.#remember((contexts) => ({
      ...contexts,
      reductions: reduce(contexts.reductions, refusal),
    }))
    emit({ kind: 'overflow', upstream: upstream.name, recovery: overflow.recovery, quirk: classified.quirk })
    return { classified, base: windows.base(of), effective: windows.effective(of, reduce(before, refusal)) }
  }

  /** Asks again with what fits; should that fail too, the client gets its own refusal. */
  #askAgain(
    again: UpstreamCall,
    overflow: Overflow,
    receiver: Receiver,
    send: Send,
    giveUp: () => void,
  ): void {
    const { emit } = this.#services
    let isRefused = false
    const failed = () => {
      emit({ kind: 'recovered', recovery: overflow.recovery, outcome: 'refused' })
      giveUp()
    }
    send(again, {
      inform: (head) => receiver.inform?.(head),
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

  /** Gives the client a response that was held until it was whole. */
  async settle(
    call: UpstreamCall,
    held: Held,
    trailers: RawHeaders,
    receiver: Receiver,
    send: Send,
  ): Promise<void> {
    const { catalogue, policies } = this.#services
    let giveUp: (() => void) | undefined
    let again: UpstreamCall | undefined
    let overflow: Overflow | undefined
    // Law 2: a fault in understanding a refusal leaves it as it came.
    try {
      const { enabled, quirks, canonical } = policies().overflow
      const found = enabled ? meaningOf(held, quirks, () => bodyOf(call)) : undefined
      if (found) {
        // It says something of the request, and nothing of whether the provider is there.
        this.outcome(400)
        // What is known of the model is told, though it takes a moment the first time.
        if (!catalogue.isLoaded) await catalogue.load().catch(() => undefined)
        overflow = found.classified.overflow
        const { head, body } = explained(
          held,
          found.plain,
          this.#noted(this.#modelAt(call), found.classified),
          canonical ? this.#route.dialect : undefined,
        )
        giveUp = () => {
          receiver.start(head, held.flow)
          receiver.data(body)
          receiver.end(trailers)
        }
        const { dialect } = this.#route
        if (dialect && held.head.status >= 400)
          again = recovered(dialect, call, overflow, policies().overflow)
      }
    } catch (error) {
      this.fault(error as Error)
    }
    if (giveUp && again && overflow) return this.#askAgain(again, overflow, receiver, send, giveUp)
    if (giveUp) return giveUp()
    if (held.head.status >= 400) this.outcome(held.head.status, held.head, held.chunks)
    replay(held, receiver)
    receiver.end(trailers)
  }

  /** What the client gets of an error event of which it has got the first `sent` bytes. */
  changeFrame(call: UpstreamCall, frame: Buffer, sent: number): Buffer {
    const { dialect } = this.#route
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
      const { quirks, canonical } = this.#services.policies().overflow
      const classified = classify({ status: 200, body: parsed(json.toString()) }, quirks, () => bodyOf(call))
      if (!classified) return rest
      const annotation = this.#noted(this.#modelAt(call), classified)
      const changed =
        dialect && canonical && isInputTooLarge(annotation)
          ? canonicalEvent(json, dialect, annotation)
          : annotated(json, annotation)
      if (!changed) return rest
      const whole = Buffer.concat([frame.subarray(0, start), changed, frame.subarray(end)])
      // What has gone can't be changed any more.
      return whole.subarray(0, sent).equals(frame.subarray(0, sent)) ? whole.subarray(sent) : rest
    } catch (error) {
      this.fault(error as Error)
      return rest
    }
  }
}

/** One response on its way to its receiver. */
class WatchedResponse implements Receiver {
  readonly #watch: RequestWatch
  readonly #call: UpstreamCall
  readonly #receiver: Receiver
  readonly #send: Send
  /** What refusals mean is read. */
  readonly #reads: boolean
  #hasBegun = false
  #held: Held | undefined
  /** An answer that may be an error after all, which its first bytes tell, is held until they come. */
  #isUndecided = false
  #isText = false
  #frames: ErrorFrames | undefined
  #patience: NodeJS.Timeout | undefined

  constructor(watch: RequestWatch, call: UpstreamCall, receiver: Receiver, send: Send, reads: boolean) {
    this.#reads = reads
    this.#watch = watch
    this.#call = call
    this.#receiver = receiver
    this.#send = send
  }

  inform(head: Head): void {
    this.#receiver.inform?.(head)
  }

  start(head: Head, flow: Flow): void {
    this.#hasBegun = true
    if (head.status < 400) this.#watch.outcome(head.status)
    if (!this.#reads && head.status < 400) return this.#receiver.start(head, flow)
    const type = typeOf(head)
    // No model's answer is plain text: that is what proxies make of an error.
    this.#isText = type.startsWith('text/plain')
    const mayTell = head.status === 200 && (this.#isText || type.includes('json'))
    this.#isUndecided = mayTell && contentEncoding(head.headers) === 'identity'
    if (this.#isUndecided || head.status >= 400) {
      this.#held = { head, flow, chunks: [], length: 0 }
      // Mostly its first bytes come at once: no timer is needed for those.
      queueMicrotask(() => this.#wait())
      return
    }
    if (type.startsWith('text/event-stream') && contentEncoding(head.headers) === 'identity') {
      this.#frames = watchErrorFrames((frame, sent) => this.#watch.changeFrame(this.#call, frame, sent))
    }
    this.#receiver.start(head, flow)
  }

  data(chunk: Buffer): void {
    const frames = this.#frames
    const held = this.#held
    if (frames) {
      if (frames.passes(chunk)) return this.#receiver.data(chunk)
      for (const piece of frames.push(chunk)) this.#receiver.data(piece)
    } else if (!held) {
      this.#receiver.data(chunk)
    } else {
      held.chunks.push(chunk)
      held.length += chunk.length
      const isAnswer = this.#isUndecided && !mayBeError(this.#isText, chunk)
      this.#isUndecided = false
      if (isAnswer || held.length > MAX_REFUSAL) this.#letGo()
    }
  }

  end(trailers: RawHeaders): void {
    this.#endFrames()
    const whole = this.#release()
    if (!whole) return this.#receiver.end(trailers)
    this.#watch.settle(this.#call, whole, trailers, this.#receiver, this.#send).catch((error: Error) => {
      this.#watch.fault(error)
      const message = 'Governor failed on this answer. Its log names the fault.'
      this.#receiver.fail({ status: 502, code: 'upstream_broken', message, cause: error })
    })
  }

  fail(failure: Failure): void {
    if (!this.#hasBegun) this.#watch.outcome(failure.code === 'aborted' ? 499 : failure.status)
    this.#letGo()
    this.#endFrames()
    this.#receiver.fail(failure)
  }

  #endFrames(): void {
    if (!this.#frames) return
    for (const piece of this.#frames.end()) this.#receiver.data(piece)
  }

  #release(): Held | undefined {
    const whole = this.#held
    this.#held = undefined
    this.#isUndecided = false
    if (this.#patience) clearTimeout(this.#patience)
    this.#patience = undefined
    return whole
  }

  #letGo(): void {
    const part = this.#release()
    if (part && part.head.status >= 400) this.#watch.outcome(part.head.status, part.head)
    if (part) replay(part, this.#receiver)
  }

  #wait(): void {
    if (this.#held) this.#patience = setTimeout(() => this.#letGo(), MAX_HELD_MS)
  }
}
