/**
 * What the requests of a run want besides an answer in plain text: a call of a forced tool, a format. Frameworks whose answer
 * has to have a form ask for it once more when the run is over, and can do nothing with the recorded text.
 */
import type { Hash } from '../hash.ts'

export interface Demand {
  readonly name: Hash
  /** The request that came with it, where the run was over already. */
  readonly lateIn?: string
}

/** So many requests with a demand of their own are relayed after the end of a run. */
const MAX_LATE = 4
/** More are not remembered. */
const MAX_DEMANDS = 32

/** Takes in what a request demands; `isOver`: its run has ended. The same request again changes nothing. */
export function withDemands(
  known: readonly Demand[] | undefined,
  demands: readonly Hash[],
  fingerprint: string,
  isOver: boolean,
): readonly Demand[] | undefined {
  const before = known ?? []
  const fresh = demands.filter((name) => !before.some((demand) => demand.name === name))
  const late = new Set(before.flatMap(({ lateIn }) => lateIn ?? []))
  if (fresh.length === 0 || before.length >= MAX_DEMANDS || (isOver && late.size >= MAX_LATE)) return known
  return [...before, ...fresh.map((name) => (isOver ? { name, lateIn: fingerprint } : { name }))]
}

/** Is it a request that is relayed though its run is over? */
export function isLate(known: readonly Demand[] | undefined, fingerprint: string): boolean {
  return known?.some(({ lateIn }) => lateIn === fingerprint) === true
}
