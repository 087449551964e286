/** The settings of the loop guard. */
import { globMatches } from '../glob.ts'

/** `observe` only finds loops, `warn` warns the model, `enforce` also blocks calls. */
export type LoopMode = 'observe' | 'warn' | 'enforce'

/** `default` masks what is volatile in results and sorts their lines; `none` compares results letter by letter. */
export type MaskMode = 'default' | 'none'

export interface LoopLimits {
  /** How many equal calls with equal results make a repetition. */
  readonly repetitionThreshold: number
  /** How many responses in a row without anything new make a cycle. */
  readonly standstill: number
  /** How many equal calls in a row get a warning, whatever their results. */
  readonly sameCallAnyResult: number
  /** The factor by which calls that wait for something may repeat more often. */
  readonly pollMultiplier: number
}

export interface LoopPolicy extends LoopLimits {
  readonly enabled: boolean
  readonly mode: LoopMode
  /** How many warnings about a loop the model may ignore before its calls are blocked. */
  readonly maxWarningsBeforeBlock: number
  /** Globs of tools whose calls do not count. */
  readonly exemptTools: readonly string[]
  readonly volatile: MaskMode
}

/** True if the calls of a tool do not count. */
export function isExempt(tool: string, { exemptTools }: LoopPolicy): boolean {
  return exemptTools.some((glob) => globMatches(glob, tool))
}
