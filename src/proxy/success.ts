/** What a success says of the windows of models: that a limit was wrong, or that a prompt was cut short in silence. */
import { succeedInSession } from '../core/context.ts'
import type { ProxyContext } from './context.ts'
import type { Judgement } from './judge.ts'
import { bodyOf } from './overflow-recovery.ts'
import { lengthOf, type UpstreamCall } from './upstream.ts'
import { keptName, type ModelAt } from './windows.ts'

/** Shorter requests fit everywhere. */
const LEAST_BYTES = 16_384

/** No text has so many bytes to a token, not even Chinese written in escapes. */
const BYTES_PER_TOKEN = 12

/** Media are many bytes and few tokens. */
const MEDIA = [';base64,', '"base64"', 'image_url', 'input_audio', 'file_data']

/**
 * Did the provider read far less than it was sent? Some servers drop the beginning of a prompt that does not fit and
 * answer what is left, without a word: https://github.com/ollama/ollama/issues/4967
 */
function isCutShort(call: UpstreamCall, promptTokens: number): boolean {
  const bytes = lengthOf(call.body)
  if (bytes < LEAST_BYTES || promptTokens <= 0 || promptTokens * BYTES_PER_TOKEN >= bytes) return false
  const body = bodyOf(call)
  return body !== undefined && !MEDIA.some((sign) => body.includes(sign))
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
  const { reductions = [] } = judgement.position
  const key = { upstream: of.upstream.name, model: keptName(of.model) }
  const isUndone = succeedInSession(reductions, key, promptTokens) !== reductions
  const isShort = isCutShort(call, promptTokens)
  if (isShort) emit({ kind: 'silent_overflow', upstream: of.upstream.name })
  if (!isUndone && !isShort) return
  judgement
    .contexts((contexts) => ({
      ...contexts,
      reductions: succeedInSession(contexts.reductions, key, promptTokens),
      silent: contexts.silent + (isShort ? 1 : 0),
    }))
    .catch(() => emit({ kind: 'failed_open', reason: 'store' }))
}
