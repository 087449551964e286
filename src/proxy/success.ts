/** What a success says of the windows of models: that a limit was wrong, or that a prompt was cut short in silence. */
import { succeedInSession } from '../core/context.ts'
import type { ProxyContext } from './context.ts'
import type { Judgement } from './judge.ts'
import { lengthOf, type UpstreamCall } from './upstream.ts'
import { keptName, type ModelAt } from './windows.ts'

/** Shorter requests fit everywhere. */
const LEAST_BYTES = 16_384

/** No text has so many bytes to a token, not even Chinese written in escapes. */
const BYTES_PER_TOKEN = 12

/** So many places of a body are looked at, each so many bytes long. */
const SAMPLES = 64
const SAMPLE_BYTES = 128
/** From this share of places on that look like nothing but base64, bytes say little about tokens. */
const MEDIA_SHARE = 0.2

/** Letters, digits and the four signs of base64; prose and code have a space or a bracket before long. */
function isBase64(byte: number): boolean {
  const letter = byte | 0x20
  if (letter >= 0x61 && letter <= 0x7a) return true
  return (byte >= 0x2f && byte <= 0x39) || byte === 0x2b || byte === 0x3d || byte === 0x2d || byte === 0x5f
}

/**
 * Are pictures, sound or files a good part of the body, which are many bytes and few tokens? Told from samples: whoever
 * searches a megabyte takes longer than all the rest of the request.
 */
function holdsMedia(body: Buffer): boolean {
  const step = body.length / SAMPLES
  let found = 0
  for (let sample = 0; sample < SAMPLES; sample++) {
    const start = Math.floor(sample * step)
    const end = Math.min(start + SAMPLE_BYTES, body.length)
    let at = start
    while (at < end && isBase64(body[at] ?? 0)) at++
    if (at === end) found++
  }
  return found >= SAMPLES * MEDIA_SHARE
}

/**
 * Did the provider read far less than it was sent? Some servers drop the beginning of a prompt that does not fit and
 * answer what is left, without a word: https://github.com/ollama/ollama/issues/4967
 */
function isCutShort({ body }: UpstreamCall, promptTokens: number): boolean {
  const bytes = lengthOf(body)
  if (bytes < LEAST_BYTES || promptTokens <= 0 || promptTokens * BYTES_PER_TOKEN >= bytes) return false
  if (Buffer.isBuffer(body)) return !holdsMedia(body)
  const pieces: readonly Buffer[] = Array.isArray(body) ? body : []
  const [longest] = pieces.toSorted((a, b) => b.length - a.length)
  return longest !== undefined && !holdsMedia(longest)
}

/** Takes into account that a prompt of so many tokens was answered. */
export function noteSuccess(
  context: ProxyContext,
  judgement: Judgement,
  of: ModelAt,
  promptTokens: number,
  call: UpstreamCall,
): void {
  const { windows, emit } = context
  windows.succeed(of, promptTokens)
  const { reductions } = judgement.position
  const key = { upstream: of.upstream.name, model: keptName(of.model) }
  const isUndone = reductions !== undefined && succeedInSession(reductions, key, promptTokens) !== reductions
  const isShort = isCutShort(call, promptTokens)
  if (isShort) emit({ kind: 'silent_overflow', upstream: of.upstream.name })
  if (!isUndone && !isShort) return
  judgement.remembered
    .contexts((contexts) => ({
      ...contexts,
      reductions: succeedInSession(contexts.reductions, key, promptTokens),
      silent: contexts.silent + (isShort ? 1 : 0),
    }))
    .catch(() => emit({ kind: 'failed_open', reason: 'store' }))
}
