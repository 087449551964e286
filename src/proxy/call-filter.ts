/** One response for the client, made of one upstream response or of several, with its calls held. */
import type { BufferedCalls, Dialect, ToolCallFilter } from '../dialect/dialect.ts'
import { decoded } from '../http/body.ts'
import type { Lease } from '../http/buffer-budget.ts'
import { contentEncoding, headerOf, isEventStream, responseHeaders } from '../http/headers.ts'
import { type GovernorHeaders, writeHead } from '../http/response.ts'
import type { Head } from '../http/upstream.ts'
import { chunksOf, plainBody, readUpTo, type UpstreamResponse } from '../http/upstream-response.ts'
import { createFrameReader } from '../sse/frames.ts'
import { type Ending, passOn, rewrittenHeaders, write } from './answer-response.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { type AnswerVariant, askForAnswer } from './final-answer.ts'

/** Whose response it is, and what its headers say; once a call was blocked they say so. */
export interface FilteredResponse {
  readonly x: EvaluatedRequest
  readonly dialect: Dialect
  /** For what is held of responses. */
  readonly lease: Lease
  governorHeaders: GovernorHeaders
}

/** What the client gets, from one upstream response or from several. */
export interface ResponseFilter {
  /** Takes one response in; `undefined` where nothing in it can be refused. @throws {UpstreamFailed} */
  take(incoming: UpstreamResponse): Promise<BufferedCalls | undefined>
  /** Gives the client the response that came last, without some of its calls. */
  release(refused: ReadonlySet<number>): Promise<void>
  /** Has the model's next response, told not to call anything, end the run. */
  end(ending: Ending, variants: readonly AnswerVariant[]): Promise<void>
}

/** Makes one stream for the client of those that come. */
export function streamFilter(guarding: FilteredResponse, { head }: UpstreamResponse): ResponseFilter {
  const { lease, dialect } = guarding
  const { services, exchange } = guarding.x
  const stream: ToolCallFilter = dialect.openFilter()
  const isCoded = contentEncoding(head.headers) !== 'identity'
  let hasHead = false
  let responses = 0
  /** There is nothing left to be released. */
  let isGiven = false
  const begin = (governorHeaders: GovernorHeaders, headers = rewrittenHeaders(head)): void => {
    if (!hasHead) writeHead(exchange.response, head, headers, governorHeaders)
    hasHead = true
  }
  // Until there is something to show, what the headers say may still change.
  const show = async (chunks: readonly Buffer[]): Promise<void> => {
    if (chunks.length === 0) return
    begin(guarding.governorHeaders)
    await write(exchange, chunks)
  }
  /** More than is kept: the client gets it as it comes. */
  const giveAll = async (): Promise<void> => {
    isGiven = true
    stream.endResponse()
    await show(stream.release(new Set()))
  }
  return {
    async take(incoming) {
      const isFirst = responses++ === 0
      const plain = plainBody(incoming)
      if (!plain && isFirst) {
        isGiven = true
        begin(guarding.governorHeaders, responseHeaders(head.headers))
        for await (const chunk of chunksOf(incoming)) await write(exchange, [chunk])
        return undefined
      }
      if (!plain || !isEventStream(incoming.head.headers)) {
        incoming.abort()
        return undefined
      }
      const reader = createFrameReader()
      let length = 0
      for await (const chunk of plain) {
        length += chunk.length
        for (const frame of reader.push(chunk)) await show(isGiven ? [frame.raw] : stream.push(frame))
        if (isGiven || (length <= services.maxGuardedBody && (await lease.grow(chunk.length)))) continue
        if (isFirst) {
          await giveAll()
          continue
        }
        incoming.abort()
        return undefined
      }
      for (const frame of reader.end()) await show(isGiven ? [frame.raw] : stream.push(frame))
      return isGiven ? undefined : stream.endResponse()
    },
    async release(refused) {
      const bytes = isGiven ? [] : stream.release(refused)
      // Of one response, all of it: the headers are still true.
      const isWhole = responses === 1 && refused.size === 0 && !isCoded
      begin(guarding.governorHeaders, isWhole ? responseHeaders(head.headers) : rewrittenHeaders(head))
      await write(exchange, bytes)
      exchange.response.end()
    },
    async end(ending, variants) {
      const [opening, answer] = stream.becomeAnswer(ending.isJson)
      await askForAnswer(ending, variants, {
        stream: { answer, head, opening, isShown: hasHead },
        earlier: [],
        text: '',
      })
    },
  }
}

/** Makes one whole response for the client of those that come. */
export function bodyFilter(guarding: FilteredResponse): ResponseFilter {
  const { dialect, lease } = guarding
  const { services, exchange } = guarding.x
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
    async take(incoming) {
      const { head } = incoming
      const max = services.maxGuardedBody
      const { bytes: raw, rest } = await readUpTo(chunksOf(incoming), max, lease)
      if (last && rest) {
        incoming.abort()
        return undefined
      }
      const body = rest
        ? undefined
        : await decoded(raw, headerOf(head.headers, 'content-encoding'), max, lease)
      const buffered = body && dialect.readCalls(body)
      // What can't be read is nothing to go on from.
      if (last && !buffered) return undefined
      if (last) bodies.push(last.body)
      last = { head, raw, body: body ?? raw, rest }
      if (buffered) texts.push(buffered.text)
      return buffered
    },
    async release(refused) {
      if (!last) return
      const { head, raw, body, rest } = last
      const { governorHeaders } = guarding
      const isWhole = refused.size === 0 && bodies.length === 0
      if (isWhole || rest) {
        return passOn(exchange, head, responseHeaders(head.headers), governorHeaders, [raw], rest)
      }
      const bytes = dialect.withoutCalls(body, refused, bodies)
      writeHead(
        exchange.response,
        head,
        [...rewrittenHeaders(head), 'content-length', String(bytes.length)],
        governorHeaders,
      )
      exchange.response.end(bytes)
    },
    end(ending, variants) {
      const text = texts.filter((one) => one !== '').join('\n\n')
      return askForAnswer(ending, variants, { earlier: bodies, text, ...(last ? { whole: last } : {}) })
    },
  }
}
