/** Computes a lower output cap for a request whose output cap was too large. */
import type { AskedOutput } from '../../dialect/dialect.ts'
import type { Overflow } from '../../overflow/overflow.ts'

/** The smallest cap that leaves room for an answer. */
const LEAST_OUTPUT = 16
/** The smallest thinking budget that providers accept. */
const LEAST_THINKING = 1_024

/**
 * Returns the cap for a second attempt; `undefined` if that would not help:
 *
 * - no room is stated;
 * - the cap would not be lower than before;
 * - it is too small for an answer, or for the thinking that the client wants.
 */
export function clampOutput(overflow: Overflow, asked: AskedOutput): AskedOutput | undefined {
  if (overflow.recovery !== 'clamp_output_only') return undefined
  const { maxOutput, limit, promptTokens } = overflow
  const room =
    maxOutput ?? (limit !== undefined && promptTokens !== undefined ? limit - promptTokens : undefined)
  if (room === undefined) return undefined
  // Room in a window shrinks by 1 %, because counts differ a little from one request to the next.
  const cap = limit === undefined ? room : room - Math.min(512, Math.max(1, Math.ceil(room * 0.01)))
  if (cap < LEAST_OUTPUT || cap >= asked.cap) return undefined
  if (asked.thinking === undefined || asked.thinking < cap) return { ...asked, cap }
  const thinking = Math.max(LEAST_THINKING, Math.floor(cap * 0.8))
  return thinking < cap ? { cap, thinking } : undefined
}
