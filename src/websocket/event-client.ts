/** The client of one request on a WebSocket: its response goes out as one message for each event. */
import { Readable, Writable } from 'node:stream'
import type { SocketForm } from '../dialect/dialect.ts'
import { type Client, writerTo } from '../http/client.ts'
import { statesEventStream } from '../http/headers.ts'
import { createFrameReader, dataFrame, dataOf, type Frame } from '../sse/frames.ts'

const START = Buffer.from('data: ')
const END = Buffer.from('\n\n')
const LF = 0x0a
const CR = 0x0d
/** Line breaks, which may stand between two tokens of JSON, and end a line of an event. */
const BREAKS = /[\r\n]/g

/** Messages with line breaks that one response keeps at a time; those beyond get spaces in their place. */
const MAX_KEPT = 1_000

/** Turns messages into events of a stream and back, without changing a byte of those that nobody changes. */
export function createFraming() {
  /** Messages with line breaks, and their text without, in their order. */
  const broken: { readonly flat: string; readonly message: Buffer }[] = []
  return {
    /** Returns a message as an event. */
    frame(message: Buffer): Buffer {
      if (!message.includes(LF) && !message.includes(CR)) return Buffer.concat([START, message, END])
      const flat = message.toString().replace(BREAKS, ' ')
      if (broken.length < MAX_KEPT) broken.push({ flat, message })
      return dataFrame(flat)
    },
    /** Returns the message of an event; `undefined` if it has no data. */
    message(frame: Frame): Buffer | undefined {
      const { raw } = frame
      const isPlain = raw.indexOf(LF) === raw.length - END.length && raw.subarray(0, START.length).equals(START)
      const text = isPlain ? undefined : dataOf(frame)
      const message = isPlain ? raw.subarray(START.length, -END.length) : text === undefined ? text : Buffer.from(text)
      const at = broken.length > 0 && message ? broken.findIndex(({ flat }) => flat === message.toString()) : -1
      // Those before it were changed, or dropped.
      return at === -1 ? message : broken.splice(0, at + 1).at(-1)?.message
    },
  }
}

export interface EventSink {
  /** Sends an event as one message. */
  send(event: Buffer): void
  /** Calls back once the client has read enough of what was sent. */
  whenRead(call: () => void): void
  /** Nothing can be sent any more: the connection is about to end, with a code that says why. */
  isEnding(): boolean
  /** The event for a response that breaks off. */
  brokenOff(): Buffer
}

/** What a client may not have read yet, in bytes. */
const MAX_UNREAD = 65_536

/** Returns the client of a request, and what makes it leave. `message`: of `createFraming` for its connection. */
export function createEventClient(
  head: Client['head'],
  request: Buffer,
  form: SocketForm,
  message: (frame: Frame) => Buffer | undefined,
  sink: EventSink,
): Client & { leave(): void } {
  const frames = createFrameReader()
  const reply: Buffer[] = []
  let status = 0
  let isStream = false
  const sendAll = (all: readonly Frame[]) => {
    for (const frame of all) {
      const event = message(frame)
      if (event) sink.send(event)
    }
  }
  const to = new Writable({
    highWaterMark: MAX_UNREAD,
    write(chunk: Buffer, _, done) {
      if (isStream) sendAll(frames.push(chunk))
      else reply.push(chunk)
      sink.whenRead(done)
    },
    final(done) {
      if (isStream) sendAll(frames.end())
      else sink.send(form.errorEvent(status, Buffer.concat(reply)))
      done()
    },
  })
  const { close, ...writer } = writerTo(to)
  to.once('close', close)
    .once('finish', close)
    .on('error', () => undefined)
  return {
    ...writer,
    head,
    body: Readable.from([request]),
    status: () => status,
    inform() {},
    begin({ status: stated, headers }) {
      status = stated
      isStream = stated < 400 && statesEventStream(headers)
    },
    end: (_trailers, last) => void to.end(last),
    fail() {
      if (status === 0 && !sink.isEnding()) return false
      if (!sink.isEnding()) sink.send(sink.brokenOff())
      to.destroy()
      return true
    },
    leave: () => void to.destroy(),
  }
}
