/** Reads the text of a response beside its relay, for the transcript that a user has opted into. */
import { createFrameReader } from '../../sse/frames.ts'
import type { Dialect } from '../dialect.ts'

/** Bytes of a whole body that are held; the text of a longer one is not known. */
const MAX_WHOLE = 1_048_576
/** Bytes of a stream that are read, and characters of its text. */
const MAX_STREAM = 8_388_608
const MAX_TEXT = 131_072

/** Takes the chunks of one response without its content coding. Throws if a chunk is not what it should be. */
export interface ResponseText {
  push(chunk: Buffer): void
  /** Returns what the model said; `undefined` if that could not be read. */
  end(): string | undefined
}

function streamText(dialect: Dialect): ResponseText {
  const textIn = dialect.openText()
  const reader = createFrameReader()
  let text = ''
  let length = 0
  return {
    push(chunk) {
      length += chunk.length
      if (length > MAX_STREAM || text.length > MAX_TEXT) return
      for (const frame of reader.push(chunk)) text += textIn(frame)
    },
    end() {
      if (length <= MAX_STREAM) for (const frame of reader.end()) text += textIn(frame)
      return text
    },
  }
}

function wholeText(dialect: Dialect): ResponseText {
  const chunks: Buffer[] = []
  let length = 0
  return {
    push(chunk) {
      length += chunk.length
      if (length <= MAX_WHOLE) chunks.push(chunk)
      else chunks.length = 0
    },
    end() {
      const answer = length <= MAX_WHOLE ? dialect.readAnswer(Buffer.concat(chunks)) : undefined
      return answer?.end === 'failed' ? undefined : answer?.text
    },
  }
}

/** Returns a reader of one response. `streams`: it is a stream of server-sent events. */
export function readText(dialect: Dialect, streams: boolean): ResponseText {
  return streams ? streamText(dialect) : wholeText(dialect)
}
