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

/** Adds plain numbers, for `withAmounts`. */
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

/** Adds to the amounts of names; once there are 24 of them, to that of `other`. */
export function withAmounts<Amount>(
  list: readonly Named<Amount>[],
  added: readonly Named<Amount>[],
  sum: (amount: Amount, more: Amount) => Amount,
): readonly Named<Amount>[] {
  if (added.length === 0) return list
  const all = [...list]
  for (const { name, amount } of added) {
    const own = name.slice(0, MAX_NAME)
    const isOther = all.length >= MAX_NAMES && !all.some((one) => one.name === own)
    const label = isOther ? OTHER : own
    const at = all.findIndex((one) => one.name === label)
    const before = all[at]
    if (before) all[at] = { name: label, amount: sum(before.amount, amount) }
    else all.push({ name: label, amount })
  }
  return all
}

/** Returns the counts of two replicas by name as one list, see `join`. */
export function joinByName(
  base: readonly Named<Counts>[],
  local: readonly Named<Counts>[],
  remote: readonly Named<Counts>[],
  isLost: boolean,
): readonly Named<Counts>[] {
  const of = (list: readonly Named<Counts>[], name: string) => list.find((one) => one.name === name)?.amount
  const names = [...new Set([...remote, ...local].map(({ name }) => name))]
  const joined = names.map((name) => {
    const [here = NO_COUNTS, there = NO_COUNTS] = [of(local, name), of(remote, name)]
    return { name, amount: join(of(base, name), here, there, 'sum', isLost) }
  })
  return withAmounts([], joined, add)
}
