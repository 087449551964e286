/** Log lines for a person, on the terminal on which Governor runs. */
import { LRUCache } from 'lru-cache'
import { clockSeconds } from '../../ops/sessions/labels.ts'
import { ASKING } from '../../telemetry/event.ts'
import { jsonLine, visible } from '../terminal-text.ts'

/** A warning that was said is not said again for so long. */
const SILENCE_MS = 60_000
/** The level of warnings, as pino has it. */
const WARN = 40
/** So many different warnings are remembered. */
const MOST = 100

/** Returns a stream for pino that says each line with its time; equal warnings once a minute, with their number. */
export function createTerminalLog(say: (text: string) => void): { write(line: string): void } {
  const said = new LRUCache<string, { readonly at: number; more: number }>({ max: MOST })
  return {
    write(line) {
      const { level, time, msg, ...facts }: Record<string, unknown> = JSON.parse(line)
      // Questions have a line of their own.
      if (msg === ASKING) return
      // Why a request failed is said in words, all else with its facts.
      const { detail } = facts
      const text = typeof detail === 'string' ? visible(`${msg}: ${detail}`) : `${msg} ${jsonLine(facts).trimEnd()}`
      const at = Date.parse(String(time))
      const before = said.get(text)
      if (before && at - before.at < SILENCE_MS && Number(level) >= WARN) {
        before.more++
        return
      }
      said.set(text, { at, more: 0 })
      say(`${clockSeconds(String(time))} ${text}${before?.more ? ` (and ${before.more} more before)` : ''}\n`)
    },
  }
}
