/** What a provider's refusal means: the first quirk that recognises it says. */
import type { Overflow } from '../core/overflow.ts'
import type { Quirk } from './quirk.ts'
import { type RawReply, unwrap } from './reply.ts'

/** An overflow, and which quirk recognised it. */
export interface Classified {
  readonly overflow: Overflow
  readonly quirk: string
}

/** `undefined`: no overflow. `quirks` in order: the user's own first. */
export function classify(raw: RawReply, quirks: readonly Quirk[]): Classified | undefined {
  const reply = unwrap(raw)
  for (const quirk of quirks) {
    const meaning = quirk.read(reply)
    if (meaning === 'none') return undefined
    if (meaning) return { overflow: meaning, quirk: quirk.id }
  }
  return undefined
}
