/**
 * `governor budget`: what is used of the limits of an hour, a day, a week and a month; raises one until it begins anew.
 */

import { didYouMean } from '../../config/did-you-mean.ts'
import { count } from '../../config/units.ts'
import { METERS, TIME_FIELDS, TIME_LIMITS } from '../../core/budget/meters.ts'
import { TIME_SCOPES } from '../../core/budget/scopes.ts'
import type { BudgetView } from '../../ops/budget.ts'
import { amount, whoseText } from '../../ops/sessions/labels.ts'
import { type Call, dollarsIn, type Terminal, UsageError } from '../command.ts'
import { fitted, jsonLine, visible } from '../terminal-text.ts'
import { connect, send } from './sessions-client.ts'

type Row = BudgetView['budget'][number]

/** Returns `$18.20 of $20.00`, one text for each limit that is set. */
function amountsOf({ used, reserved, max }: Row): readonly string[] {
  const texts: string[] = []
  for (const name of TIME_LIMITS) {
    const field = TIME_FIELDS[name]
    if (max[field] === 0) continue
    const { unit } = METERS[name]
    const held = reserved[field] > 0 ? ` (${amount(name, reserved[field])} in flight)` : ''
    texts.push(`${amount(name, used[field])} of ${amount(name, max[field])}${unit === '' ? '' : ` ${unit}`}${held}`)
  }
  return texts
}

/** Returns a line for each limit of a row; the first one says whose they are, and until when. */
function linesOf(row: Row, columns: number, widest: number): string {
  const { scope, share, mode, resets_at } = row
  const end = new Date(resets_at).toLocaleString('sv').slice(0, 16)
  const observed = mode === 'observe' ? ', observed only' : ''
  const [first = 'no limit', ...others] = amountsOf(row)
  const used = `${Math.round(share * 100)}%`.padStart(4)
  const head = `${scope.padEnd(6)}${fitted(whoseText(row), Math.min(24, widest))} ${used}  `
  const lines = [`${head}${first}, until ${end}${observed}`, ...others.map((one) => ' '.repeat(head.length) + one)]
  return lines.map((line) => `${fitted(line, columns).trimEnd()}\n`).join('')
}

/** Limits by their names in the API, as the command line has them: `30`, `$30`, `tokens=5M`. */
function limitIn(text: string): Readonly<Record<string, number>> | undefined {
  const dollars = dollarsIn(text)
  if (dollars !== undefined) return { [METERS.cost.limit.setting]: dollars }
  const [, name, amount = ''] = /^(tokens|iterations|runs)=(.+)$/.exec(text) ?? []
  const { data } = count.safeParse(/^\d+$/.test(amount) ? Number(amount) : amount)
  return name === undefined || data === undefined ? undefined : { [`max_${name}`]: data }
}

/** The most names that are listed. */
const MAX_NAMES = 20

/** Says that nobody of a name has used anything, and who has: its first request may still come. */
function unknownText(row: Row, all: readonly Row[]): string {
  const there = all.filter(({ scope, per, subject }) => scope === row.scope && per === row.per && subject)
  const names = there.map(({ subject }) => subject ?? '')
  const known = names.slice(0, MAX_NAMES).join(', ')
  const others = `${didYouMean(row.subject ?? '', names) || '.'} There are ${known}`
  return visible(`${whoseText(row)} has used nothing so far${known === '' ? '' : others}`)
}

/** Prints the limits, or sets one. Throws `CommandError` if Governor can't be reached or refuses. */
export async function budget({ args, flags }: Call, terminal: Terminal): Promise<number> {
  const [scope, limit = '', subject = null] = args
  const connection = connect(flags, terminal.env)
  const known: readonly string[] = TIME_SCOPES
  const to = limitIn(limit)
  const ask = async () => (await send<BudgetView>(connection, 'budget', 'budget')).budget
  let rows: readonly Row[]
  if (scope === undefined) {
    rows = await ask()
  } else {
    if (!known.includes(scope)) throw new UsageError(`budget ${scope}: expected one of ${known.join(', ')}`)
    if (!to) throw new UsageError(`budget ${scope} needs dollars, such as 30, or tokens=5M, iterations=500 or runs=20`)
    // Of several limits with subjects, the one that has this subject is meant.
    const all = subject === null ? [] : await ask()
    const [row, other] = all.filter((one) => one.scope === scope && one.subject === subject)
    const per = other ? undefined : row?.per
    const set = await send<Row>(connection, 'budget', 'max', { scope, per, subject, ...to }, 'PATCH')
    if (!row && set.subject !== null) terminal.err(`governor: ${unknownText(set, all)}\n`)
    rows = [set]
  }
  if (flags.json) for (const row of rows) terminal.out(jsonLine(row))
  else if (rows.length === 0) terminal.out('no limits of an hour, a day, a week or a month: see --max-cost-per-day\n')
  else {
    const widest = Math.max(...rows.map((row) => whoseText(row).length))
    for (const row of rows) terminal.out(linesOf(row, terminal.columns, widest))
  }
  return 0
}
