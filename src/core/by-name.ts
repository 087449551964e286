/** Amounts by name, for names that clients and models choose: the number of them and their length are bounded. */
import { add, type Counts, join, NO_COUNTS } from './counters.ts'

/** The amount of one name. Lists hold them, because an object treats a key such as `__proto__` in its own way. */
export interface Named<Amount> {
  readonly name: string
  readonly amount: Amount
}

/** The most names of one list. */
const MAX_NAMES = 24
const MAX_NAME = 64
/** What all further names count as. */
export const OTHER = 'other'

/** Adds plain numbers, for `withAmount`. */
export const plus = (amount: number, more: number) => amount + more

/** Returns whether a text is short and plain enough to be the label of a sum. */
export function isLabel(text: string): boolean {
  return /^[\w.:/@-]{1,64}$/.test(text)
}

/** Returns what a tool counts as: its name, the first 64 characters of it, or `other` where those are no label. */
export function toolLabel(name: string): string {
  const label = name.slice(0, MAX_NAME)
  return isLabel(label) ? label : OTHER
}

/** Adds to the amount of a name; once there are 24 of them, to that of `other`. */
export function withAmount<Amount>(
  list: readonly Named<Amount>[],
  name: string,
  more: Amount,
  sum: (amount: Amount, more: Amount) => Amount,
): readonly Named<Amount>[] {
  const label = name.slice(0, MAX_NAME)
  const isKnown = list.length < MAX_NAMES || list.some((one) => one.name === label)
  const at = list.findIndex((one) => one.name === (isKnown ? label : OTHER))
  const before = list[at]
  if (before) return list.with(at, { ...before, amount: sum(before.amount, more) })
  return [...list, { name: isKnown ? label : OTHER, amount: more }]
}

/** Returns the counts of two replicas by name as one list, see `join`. */
export function joinByName(
  base: readonly Named<Counts>[],
  local: readonly Named<Counts>[],
  remote: readonly Named<Counts>[],
  isLost: boolean,
): readonly Named<Counts>[] {
  const of = (list: readonly Named<Counts>[], name: string) => list.find((one) => one.name === name)?.amount
  let joined: readonly Named<Counts>[] = []
  for (const name of new Set([...remote, ...local].map((one) => one.name))) {
    const [here = NO_COUNTS, there = NO_COUNTS] = [of(local, name), of(remote, name)]
    joined = withAmount(joined, name, join(of(base, name), here, there, 'sum', isLost), add)
  }
  return joined
}
