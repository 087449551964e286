/** How much output a request may ask for after it was refused for asking too much. */
import type { Overflow } from '../core/overflow.ts'

/** What a refused request asked for, in tokens. */
export interface AskedOutput {
  readonly cap: number
  /** Tokens for thinking that count as output and must be less than the cap. */
  readonly thinking?: number
}

/** Less than this is no answer. */
const LEAST_OUTPUT = 16
/** What providers ask for a thinking budget to be. */
const LEAST_THINKING = 1_024

/** Counts differ a little from one request to the next. */
function withMargin(room: number): number {
  return room - Math.min(512, Math.max(1, Math.ceil(room * 0.01)))
}

/** What the model's bound or the window leaves for output; `undefined` where the refusal states neither. */
function roomOf(overflow: Overflow): number | undefined {
  if (overflow.recovery !== 'clamp_output_only') return undefined
  const { maxOutput, limit, promptTokens } = overflow
  const isComputed = limit !== undefined && promptTokens !== undefined
  const room = maxOutput ?? (isComputed ? limit - promptTokens : undefined)
  if (room === undefined) return undefined
  return isComputed || limit !== undefined ? withMargin(room) : room
}

/**
 * The cap with which to ask again; `undefined` where that would bring nothing: no room is stated, it is not less than what was asked for,
 * or it is too small for an answer, or for the thinking that the client wants.
 */
export function clampOutput(overflow: Overflow, asked: AskedOutput): AskedOutput | undefined {
  const cap = roomOf(overflow)
  if (cap === undefined || cap < LEAST_OUTPUT || cap >= asked.cap) return undefined
  if (asked.thinking === undefined) return { cap }
  if (asked.thinking < cap) return { cap, thinking: asked.thinking }
  const thinking = Math.max(LEAST_THINKING, Math.floor(cap * 0.8))
  return thinking < cap ? { cap, thinking } : undefined
}
