/** Computes a lower output cap for a request whose output cap was too large. */
import type { AskedOutput } from '../../dialect/dialect.ts'
import type { Overflow } from '../../overflow/overflow.ts'

/** The smallest cap that leaves room for an answer. */
const LEAST_OUTPUT = 16
/** The smallest thinking budget that providers accept. */
const LEAST_THINKING = 1_024

/** Returns the room minus a margin of 1 %, because counts differ a little from one request to the next. */
function withMargin(room: number): number {
  return room - Math.min(512, Math.max(1, Math.ceil(room * 0.01)))
}

/** Returns the tokens that the model's limit or the window leaves for output; `undefined` if neither is stated. */
function roomOf(overflow: Overflow): number | undefined {
  if (overflow.recovery !== 'clamp_output_only') return undefined
  const { maxOutput, limit, promptTokens } = overflow
  const isComputed = limit !== undefined && promptTokens !== undefined
  const room = maxOutput ?? (isComputed ? limit - promptTokens : undefined)
  if (room === undefined) return undefined
  return isComputed || limit !== undefined ? withMargin(room) : room
}

/**
 * Returns the cap for a second attempt; `undefined` if that would not help: no room is stated, the cap would not be lower
 * than before, or it is too small for an answer or for the thinking that the client wants.
 */
export function clampOutput(overflow: Overflow, asked: AskedOutput): AskedOutput | undefined {
  const cap = roomOf(overflow)
  if (cap === undefined || cap < LEAST_OUTPUT || cap >= asked.cap) return undefined
  if (asked.thinking === undefined) return { cap }
  if (asked.thinking < cap) return { cap, thinking: asked.thinking }
  const thinking = Math.max(LEAST_THINKING, Math.floor(cap * 0.8))
  return thinking < cap ? { cap, thinking } : undefined
}
