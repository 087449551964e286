/** One response for the client, made of one upstream response or of several, with its calls held. */
import { Readable } from 'node:stream'
import type { CallGate, Dialect, HeldCalls } from '../dialect/dialect.ts'
import { decoded } from '../http/body.ts'
import { leaseFor } from '../http/buffer-budget.ts'
import { codingOf, headerOf, isEventStream, responseHeaders } from '../http/headers.ts'
import { type OwnHeaders, writeHead } from '../http/response.ts'
import type { Head } from '../http/upstream.ts'
import { createFrameReader } from '../sse/frames.ts'
import { type Ending, passOn, rewrittenHeaders, write } from './answer-response.ts'
import type { Trip } from './begin-exchange.ts'
import { ask, type Form } from './final-answer.ts'
import type { ProxyContext } from './services.ts'
import { type Incoming, plainBody, readUpTo } from './upstream-response.ts'

/** Whose response it is, and what its headers say; once a call was refused they say so. */
export interface Gated {
  readonly context: ProxyContext
  readonly trip: Trip
  readonly dialect: Dialect
  own: OwnHeaders
}

/** What the client gets, from one upstream response or from several. */
export interface Gate {
  /** Takes one response in; `undefined` where nothing in it can be refused. @throws {UpstreamFailed} */
  take(incoming: Incoming): Promise<HeldCalls | undefined>
  /** Gives the client the response that came last, without some of its calls. */
  release(refused: ReadonlySet<number>): Promise<void>
  /** Has the model's next response, told not to call anything, end the run. */
  end(ending: Ending, forms: readonly Form[]): Promise<void>
}

/** Makes one stream for the client of those that come. */
export function streamGate(guarding: Gated, { head }: Incoming): Gate {
  const { context, trip } = guarding
  const stream: CallGate = guarding.dialect.openGate()
  const lease = leaseFor(context.buffers, trip.response)
  const isCoded = codingOf(head.headers) !== 'identity'
  let hasHead = false
  let responses = 0
  /** There is nothing left to be released. */
  let isGiven = false
  const begin = (own: OwnHeaders, headers = rewrittenHeaders(head)): void => {
    if (!hasHead) writeHead(trip.response, head, headers, own)
    hasHead = true
  }
  // Until there is something to show, what the headers say may still change.
  const show = async (chunks: readonly Buffer[]): Promise<void> => {
    if (chunks.length === 0) return
    begin(guarding.own)
    await write(trip, chunks)
  }
  /** More than is kept: the client gets it as it comes. */
  const giveAll = async (): Promise<void> => {
    isGiven = true
    stream.endTry()
    await show(stream.release(new Set()))
  }
  return {
    async take(incoming) {
      const isFirst = responses++ === 0
      const plain = plainBody(incoming)
      if (!plain && isFirst) {
        isGiven = true
        begin(guarding.own, responseHeaders(head.headers))
        for await (const chunk of incoming.body) await write(trip, [chunk])
        return undefined
      }
      if (!plain || !isEventStream(incoming.head.headers)) {
        incoming.body.destroy()
        return undefined
      }
      const reader = createFrameReader()
      let length = 0
      for await (const chunk of plain) {
        length += chunk.length
        for (const frame of reader.push(chunk)) await show(isGiven ? [frame.raw] : stream.push(frame))
        if (isGiven || (length <= context.maxGuardedBody && (await lease.grow(chunk.length)))) continue
        if (isFirst) {
          await giveAll()
          continue
        }
        incoming.body.destroy()
        return undefined
      }
      for (const frame of reader.end()) await show(isGiven ? [frame.raw] : stream.push(frame))
      return isGiven ? undefined : stream.endTry()
    },
    async release(refused) {
      const bytes = isGiven ? [] : stream.release(refused)
      // Of one response, all of it: the headers are still true.
      const isWhole = responses === 1 && refused.size === 0 && !isCoded
      begin(guarding.own, isWhole ? responseHeaders(head.headers) : rewrittenHeaders(head))
      await write(trip, bytes)
      trip.response.end()
    },
    async end(ending, forms) {
      const [opening, answer] = stream.toAnswer(ending.isJson)
      await ask(ending, forms, {
        stream: { answer, head, opening, isShown: hasHead },
        earlier: [],
        text: '',
      })
    },
  }
}

/** Makes one whole response for the client of those that come. */
export function wholeGate(guarding: Gated): Gate {
  const { context, trip, dialect } = guarding
  const lease = leaseFor(context.buffers, trip.response)
  const bodies: Buffer[] = []
  const texts: string[] = []
  let last:
    | {
        readonly head: Head
        /** As it came, and without its content coding. */
        readonly raw: Buffer
        readonly body: Buffer
        readonly rest: AsyncIterable<Buffer> | undefined
      }
    | undefined
  return {
    async take({ head, body: coming }) {
      const max = context.maxGuardedBody
      const { bytes: raw, rest } = await readUpTo(coming, max, lease)
      if (last && rest) {
        coming.destroy()
        return undefined
      }
      const body = rest
        ? undefined
        : await decoded(raw, headerOf(head.headers, 'content-encoding'), max, lease)
      const held = body && dialect.readCalls(body)
      // What can't be read is nothing to go on from.
      if (last && !held) return undefined
      if (last) bodies.push(last.body)
      last = { head, raw, body: body ?? raw, rest }
      if (held) texts.push(held.text)
      return held
    },
    async release(refused) {
      if (!last) return
      const { head, raw, body, rest } = last
      const { own } = guarding
      const isWhole = refused.size === 0 && bodies.length === 0
      if (isWhole || rest) {
        return passOn(trip, head, responseHeaders(head.headers), own, rest ?? Readable.from([]), [raw])
      }
      const bytes = dialect.withoutCalls(body, refused, bodies)
      writeHead(trip.response, head, [...rewrittenHeaders(head), 'content-length', String(bytes.length)], own)
      trip.response.end(bytes)
    },
    end(ending, forms) {
      const text = texts.filter((one) => one !== '').join('\n\n')
      return ask(ending, forms, { earlier: bodies, text, ...(last ? { whole: last } : {}) })
    },
  }
}
