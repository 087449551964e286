/**
 * What the requests of a run demand besides plain text: a call of a forced tool, or a format. A framework that needs
 * its answer in such a form asks for it once more when the run is over, and cannot use the recorded text.
 */
import type { Hash } from '../hash.ts'

/** One demand, identified by a hash of its name. */
export interface Demand {
  readonly name: Hash
  /** Fingerprint of the request that made it after the end of the run; unset if it was made before. */
  readonly lateIn?: string
}

/** How many requests with a new demand are relayed after the end of a run. */
const MAX_LATE = 4
/** How many demands a run remembers. */
const MAX_DEMANDS = 32

/** Adds the demands of a request; `isOver`: its run has ended. The same request again changes nothing. */
export function withDemands(
  known: readonly Demand[] | undefined,
  demands: readonly Hash[],
  fingerprint: string,
  isOver: boolean,
): readonly Demand[] | undefined {
  if (demands.length === 0) return known
  const before = known ?? []
  const fresh = demands.filter((name) => !before.some((demand) => demand.name === name))
  const late = new Set(before.flatMap(({ lateIn }) => lateIn ?? []))
  if (fresh.length === 0 || before.length >= MAX_DEMANDS || (isOver && late.size >= MAX_LATE)) return known
  return [...before, ...fresh.map((name) => (isOver ? { name, lateIn: fingerprint } : { name }))]
}

/** Returns whether a request is relayed although its run is over. */
export function isLate(known: readonly Demand[] | undefined, fingerprint: string): boolean {
  return known?.some(({ lateIn }) => lateIn === fingerprint) === true
}
