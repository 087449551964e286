/** Makes one response for the client from one upstream response or several; its calls are held until they are checked. */
import type { BufferedCalls, Dialect, ToolCallFilter } from '../../dialect/dialect.ts'
import { decoded } from '../../http/body.ts'
import type { Lease } from '../../http/buffer-budget.ts'
import { contentEncoding, headerOf, isEventStream, responseHeaders } from '../../http/headers.ts'
import { type GovernorHeaders, writeHead } from '../../http/response.ts'
import type { Head } from '../../http/upstream.ts'
import { chunksOf, plainBody, readUpTo, type UpstreamResponse } from '../../http/upstream-response.ts'
import { createFrameReader, type Frame } from '../../sse/frames.ts'
import type { EvaluatedRequest } from '../evaluated-request.ts'
import { type AnswerVariant, askForAnswer } from '../final-answer.ts'
import { type Ending, passOn, rewrittenHeaders, write } from './answer-response.ts'

/** The client's response while it is made. */
export interface FilteredResponse {
  readonly x: EvaluatedRequest
  readonly dialect: Dialect
  /** For what is held of responses. */
  readonly lease: Lease
  /** What the client gets besides the upstream's headers; blocked calls change it. */
  governorHeaders: GovernorHeaders
}

/** Makes one response for the client from one upstream response or from several. */
export interface ResponseFilter {
  /** Reads a response; returns its calls, or `undefined` if none of them can be blocked. @throws {UpstreamFailed} */
  take(response: UpstreamResponse): Promise<BufferedCalls | undefined>
  /** Gives the client the newest response without the calls at the `blocked` positions. */
  release(blocked: ReadonlySet<number>): Promise<void>
  /** Asks the model for an answer without calls and ends the client's response with it. */
  end(ending: Ending, variants: readonly AnswerVariant[]): Promise<void>
}

/** A client's stream while it is made. Changed by the functions of this file alone. */
interface FilteredStream {
  readonly filtered: FilteredResponse
  readonly calls: ToolCallFilter
  /** The head of the first response. */
  readonly head: Head
  /** The client has the head; until then its headers may change. */
  hasHead: boolean
  /** How many responses came. */
  responses: number
  /** The response is too large or unreadable: the client gets it as it comes. */
  passes: boolean
}

/** Makes one stream for the client from streams of the upstream. */
export function streamFilter(filtered: FilteredResponse, { head }: UpstreamResponse): ResponseFilter {
  const calls = filtered.dialect.openFilter()
  const stream: FilteredStream = { filtered, calls, head, hasHead: false, responses: 0, passes: false }
  return {
    take: (response) => takeStream(stream, response),
    release: (blocked) => releaseStream(stream, blocked),
    end(ending, variants) {
      const [opening, answer] = calls.becomeAnswer(ending.isJson, ending.footer !== undefined)
      const begun = { answer, head, opening, isShown: stream.hasHead }
      return askForAnswer(ending, variants, { stream: begun, earlier: [], text: '' })
    },
  }
}

function beginStream(stream: FilteredStream, headers = rewrittenHeaders(stream.head)): void {
  const { x, governorHeaders } = stream.filtered
  if (!stream.hasHead) writeHead(x.exchange.response, stream.head, headers, governorHeaders)
  stream.hasHead = true
}

async function show(stream: FilteredStream, chunks: readonly Buffer[]): Promise<void> {
  if (chunks.length === 0) return
  beginStream(stream)
  await write(stream.filtered.x.exchange, chunks)
}

async function takeStream(
  stream: FilteredStream,
  response: UpstreamResponse,
): Promise<BufferedCalls | undefined> {
  const isFirst = stream.responses++ === 0
  const plain = plainBody(response)
  if (!plain && isFirst) {
    stream.passes = true
    beginStream(stream, responseHeaders(stream.head.headers))
    for await (const chunk of chunksOf(response)) await show(stream, [chunk])
    return undefined
  }
  if (plain && isEventStream(response.head.headers) && (await takeFrames(stream, plain, isFirst))) {
    return stream.passes ? undefined : stream.calls.endResponse()
  }
  response.abort()
  return undefined
}

/** Reads a stream to its end. Returns false if it is not the first and there is no room for it. */
async function takeFrames(
  stream: FilteredStream,
  plain: AsyncIterable<Buffer>,
  isFirst: boolean,
): Promise<boolean> {
  const { calls, filtered } = stream
  const take = (frame: Frame) => show(stream, stream.passes ? [frame.raw] : calls.push(frame))
  const reader = createFrameReader()
  let length = 0
  for await (const chunk of plain) {
    length += chunk.length
    for (const frame of reader.push(chunk)) await take(frame)
    const hasRoom = length <= filtered.x.services.maxGuardedBody
    if (stream.passes || (hasRoom && filtered.lease.grow(chunk.length))) continue
    if (!isFirst) return false
    stream.passes = true
    calls.endResponse()
    await show(stream, calls.release(new Set()))
  }
  for (const frame of reader.end()) await take(frame)
  return true
}

async function releaseStream(stream: FilteredStream, blocked: ReadonlySet<number>): Promise<void> {
  const { filtered, head, responses } = stream
  const { exchange } = filtered.x
  const bytes = stream.passes ? [] : stream.calls.release(blocked)
  const isUnchanged = responses === 1 && blocked.size === 0 && contentEncoding(head.headers) === 'identity'
  beginStream(stream, isUnchanged ? responseHeaders(head.headers) : rewrittenHeaders(head))
  await write(exchange, bytes)
  exchange.response.end()
}

/** A whole response that was read, or its beginning. */
interface WholeResponse {
  readonly head: Head
  /** The bytes as they came. */
  readonly raw: Buffer
  /** The same without the content coding. */
  readonly body: Buffer
  /** What is too much to be held. */
  readonly rest: AsyncIterable<Buffer> | undefined
}

/** A client's whole response while it is made. Changed by the functions of this file alone. */
interface FilteredBody {
  readonly filtered: FilteredResponse
  /** The bodies before the newest. */
  readonly earlier: Buffer[]
  /** What the model said in each response. */
  readonly texts: string[]
  newest: WholeResponse | undefined
}

/** Makes one whole response for the client from whole responses of the upstream. */
export function bodyFilter(filtered: FilteredResponse): ResponseFilter {
  const state: FilteredBody = { filtered, earlier: [], texts: [], newest: undefined }
  return {
    take: (response) => takeBody(state, response),
    release: (blocked) => releaseBody(state, blocked),
    end(ending, variants) {
      const { earlier, newest } = state
      const text = state.texts.filter((said) => said !== '').join('\n\n')
      return askForAnswer(ending, variants, { earlier, text, ...(newest ? { whole: newest } : {}) })
    },
  }
}

async function takeBody(state: FilteredBody, response: UpstreamResponse): Promise<BufferedCalls | undefined> {
  const { filtered, newest } = state
  const { x, lease, dialect } = filtered
  const { head } = response
  const max = x.services.maxGuardedBody
  const { bytes: raw, rest } = await readUpTo(chunksOf(response), max, lease)
  if (newest && rest) {
    response.abort()
    return undefined
  }
  const encoding = headerOf(head.headers, 'content-encoding')
  const body = rest ? undefined : await decoded(raw, encoding, max, lease)
  const buffered = body && dialect.readAnswer(body)?.buffered
  // The run cannot continue from a response that cannot be read.
  if (newest && !buffered) return undefined
  if (newest) state.earlier.push(newest.body)
  state.newest = { head, raw, body: body ?? raw, rest }
  if (buffered) state.texts.push(buffered.text)
  return buffered
}

async function releaseBody(
  { filtered, newest, earlier }: FilteredBody,
  blocked: ReadonlySet<number>,
): Promise<void> {
  if (!newest) return
  const { head, raw, body, rest } = newest
  const { x, governorHeaders, dialect } = filtered
  const { exchange } = x
  const isUnchanged = blocked.size === 0 && earlier.length === 0
  if (isUnchanged || rest) {
    return passOn(exchange, head, responseHeaders(head.headers), governorHeaders, [raw], rest)
  }
  const bytes = dialect.withoutCalls(body, blocked, earlier)
  const headers = [...rewrittenHeaders(head), 'content-length', String(bytes.length)]
  writeHead(exchange.response, head, headers, governorHeaders)
  exchange.response.end(bytes)
}
