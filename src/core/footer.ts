/** The last line of a final answer that says why Governor ended the run, for clients that show no metadata. */

import { METERS } from './budget/meters.ts'
import { fill } from './budget/notice.ts'
import { type Limit, REASONS, reasonOf } from './terminal.ts'

/** How each footer begins. */
export const FOOTER_START = '— stopped by governor: '

/** Returns the footer for what ended a run, without a line break. The amount used never exceeds the limit. */
export function footerOf(limit: Limit): string {
  const { meter } = limit
  const used = Math.min(METERS[meter.name].limit.rounded(meter.used), meter.max)
  return FOOTER_START + fill(REASONS[reasonOf(limit)].footer, { ...meter, used })
}

/** Returns what has to follow a text so that the footer is its last line, once; `undefined` if nothing has to. */
export function footerAfter(text: string, footer: string | undefined): string | undefined {
  // A model that finds a footer in its history may end its own answer with one.
  if (footer === undefined || text.trimEnd().endsWith(footer)) return undefined
  return text.trim() === '' ? footer : `\n\n${footer}`
}

/** A text, and the line that the client reads after it. */
interface Said {
  readonly text: string
  readonly footer?: string | undefined
}

/** Returns a final answer as the client reads it: with its footer, if it has one. */
export function textWithFooter({ text, footer }: Said): string {
  return text + (footerAfter(text, footer) ?? '')
}

/** Returns a text that a client sends back without the footer at its end. */
export function withoutFooter(text: string): string {
  const at = text.lastIndexOf(FOOTER_START)
  const isLastLine = at !== -1 && !text.slice(at).trimEnd().includes('\n')
  return isLastLine && (at === 0 || text[at - 1] === '\n') ? text.slice(0, at).trimEnd() : text
}
