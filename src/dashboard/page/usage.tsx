/** What agents used in the last days, out of the journal, and how much of the limits of time is used. */
import { useEffect, useState } from 'preact/hooks'
import type { BudgetView } from '../../ops/budget.ts'
import { amount, compact, money, scopeText, whoseText } from '../../ops/sessions/labels.ts'
import type { UsageView } from '../../ops/usage.ts'
import { raiseQuestion } from './actions.tsx'
import { Bars } from './bars.tsx'
import { Dialog, type Question } from './dialog.tsx'
import { Bar, Section } from './parts.tsx'
import { askJson, askText } from './requests.ts'
import { failed, type Store } from './state.ts'

const GROUPINGS = ['model', 'client', 'key', 'session', 'tool', 'day'] as const
type Grouping = (typeof GROUPINGS)[number]
const SPANS = [7, 30] as const
const MINUTE = 60_000
const DAY = 86_400_000
/** Groups with a colour of their own. */
const COLOURS = 5

/** What the address says after `#/usage`: `/model/30`. */
function usageIn(view: string): { readonly by: Grouping; readonly days: number } {
  const [, by, days] = view.split('/')
  return {
    by: GROUPINGS.find((one) => one === by) ?? 'model',
    days: SPANS.find((one) => String(one) === days) ?? 30,
  }
}

/** Returns the days of the calendar from one to another, as `2026-11-27`. */
function daysBetween(first: string, last: string): readonly string[] {
  const days: string[] = []
  for (let at = Date.parse(first); at <= Date.parse(last); at += DAY) days.push(new Date(at).toISOString().slice(0, 10))
  return days
}

const dayOf = (time: number) => new Date(time).toLocaleDateString('sv')
const shortDay = (day: string) =>
  new Date(`${day}T12:00`).toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })

type Row = UsageView['usage'][number]
type Sums = UsageView['total']
const nameOf = (row: Row, by: Grouping) => row[by] ?? ''
const costOf = ({ cost_usd, price_known }: Sums) => {
  const isUnknown = cost_usd === 0 && !price_known
  return money({ cost_usd: isUnknown ? null : cost_usd, price_known, cost_estimated: false })
}

function Days({ view, since, unit }: { view: UsageView; since: string; unit: 'cost' | 'tokens' }) {
  const field = unit === 'cost' ? 'cost_usd' : 'tokens'
  const named = view.by === 'day' ? [] : view.usage.slice(0, COLOURS)
  const known = new Map(view.days.map((one) => [one.day, unit === 'cost' ? one.cost_usd : one.input + one.output]))
  const ends = [dayOf(Date.now()), view.days.at(-1)?.day ?? '']
  const bars = daysBetween(since, ends.sort().at(-1) ?? '').map((day) => {
    let rest = known.get(day) ?? 0
    const parts = named.map((row, at) => {
      const used = row.days.find((one) => one.day === day)?.[field] ?? 0
      rest -= used
      return { amount: used, tone: `tone-${at}` }
    })
    const restTone = named.length > 0 ? 'tone-rest' : 'tone-0'
    return { title: shortDay(day), parts: [...parts, { amount: Math.max(0, rest), tone: restTone }] }
  })
  const { total } = view
  const all = unit === 'cost' ? costOf(total) : `${compact(total.input + total.output)} tokens`
  return (
    <>
      <Bars bars={bars} label={`${all} in ${bars.length} days`} format={(used) => amount(unit, used)} />
      {named.length > 0 && (
        <p class="legend">
          {named.map((row, at) => (
            <span key={nameOf(row, view.by)}>
              <i class={`tone-${at}`} /> <bdi>{nameOf(row, view.by)}</bdi>
            </span>
          ))}
          {(view.usage.length > named.length || view.others) && (
            <span>
              <i class="tone-rest" /> others
            </span>
          )}
        </p>
      )}
    </>
  )
}

function SumCells({ sums }: { sums: Sums }) {
  return (
    <>
      <td class="number wide">{sums.runs}</td>
      <td class="number">{sums.iterations}</td>
      <td class="number wide">{sums.calls}</td>
      <td class="number">{compact(sums.input)}</td>
      <td class="number wide">{compact(sums.cached_input)}</td>
      <td class="number wide">{compact(sums.output)}</td>
      <td class="number">{costOf(sums)}</td>
    </>
  )
}

function Table({ view }: { view: UsageView }) {
  const { by, usage, others, total } = view
  return (
    <table class="sums">
      <thead>
        <tr>
          <th scope="col">{by.charAt(0).toUpperCase() + by.slice(1)}</th>
          {['Runs', 'Iterations', 'Calls', 'Input', 'Cached', 'Output', 'Cost'].map((head) => (
            <th key={head} scope="col" class={/^(Runs|Calls|Cached|Output)$/.test(head) ? 'number wide' : 'number'}>
              {head}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {(by === 'day' ? usage.toReversed() : usage).map((row) => (
          <tr key={nameOf(row, by)}>
            <th scope="row" title={nameOf(row, by)}>
              <bdi>{nameOf(row, by)}</bdi>
            </th>
            <SumCells sums={row} />
          </tr>
        ))}
        {others && (
          <tr>
            <th scope="row">{others.groups} others</th>
            <SumCells sums={others} />
          </tr>
        )}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">Total</th>
          <SumCells sums={total} />
        </tr>
      </tfoot>
    </table>
  )
}

const FIELDS = { cost_usd: 'cost', tokens: 'tokens', iterations: 'iterations', runs: 'runs' } as const

/** The limits of an hour, a day, a week and a month, each with a button that raises it. */
function Limits({ store, budget }: { store: Store; budget: BudgetView['budget'] }) {
  const [question, setQuestion] = useState<Question>()
  const rows = budget.flatMap((one) =>
    (Object.keys(FIELDS) as (keyof typeof FIELDS)[])
      .filter((field) => one.max[field] > 0)
      .map((field) => ({ ...one, meter: FIELDS[field], used: one.used[field], max: one.max[field] })),
  )
  if (rows.length === 0) return null
  return (
    <Section title="Limits of time" note="until they begin anew">
      <table class="sums limits">
        <thead>
          <tr>
            {['Limit', 'Used', 'Begins anew', ''].map((head) => (
              <th key={head} scope="col" class={head === 'Begins anew' ? 'wide' : ''}>
                {head || <span class="unseen">Raise it</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const { scope, per, subject, meter, used, max, mode, resets_at } = row
            const whose = whoseText(row)
            return (
              <tr key={`${scope} ${per} ${subject} ${meter}`}>
                <th scope="row">
                  <bdi>{`${scopeText(scope)}, ${whose}`}</bdi>
                  {mode === 'observe' && <small> only observed</small>}
                </th>
                <td>
                  {amount(meter, used)} of {amount(meter, max)} {meter === 'cost' ? '' : meter}
                  <Bar used={used} max={max} />
                </td>
                <td class="wide">
                  {new Date(resets_at).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' })}
                </td>
                <td class="number">
                  <button
                    type="button"
                    aria-label={`Raise the limit of ${meter} ${scopeText(scope)}, ${whose}`}
                    onClick={() => setQuestion(raiseQuestion(store, row))}
                  >
                    Raise
                  </button>
                </td>
              </tr>
            )
          })}
        </tbody>
      </table>
      {question && <Dialog question={question} close={() => setQuestion(undefined)} />}
    </Section>
  )
}

function download(name: string, text: string): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }))
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), MINUTE)
}

function Choice({ of, chosen, href }: { of: readonly string[]; chosen: string; href: (one: string) => string }) {
  return (
    <span class="choice">
      {of.map((one) => (
        <a key={one} href={href(one)} aria-current={one === chosen ? 'true' : undefined}>
          {one}
        </a>
      ))}
    </span>
  )
}

/** The page *Usage*. */
export function Usage({ store }: { store: Store }) {
  const { by, days } = usageIn(store.view)
  const [shown, setShown] = useState<{ view?: UsageView; problem?: string; budget?: BudgetView['budget'] }>({})
  const [unit, setUnit] = useState<'cost' | 'tokens'>('cost')
  const since = dayOf(Date.now() - (days - 1) * DAY)
  const query = `usage?by=${by}&since=${since}`
  useEffect(() => {
    let isOver = false
    const load = async () => {
      const [view, budget] = await Promise.allSettled([
        askJson<UsageView>(store.visit, query),
        askJson<BudgetView>(store.visit, 'budget'),
      ])
      if (isOver) return
      const refused = view.status === 'rejected' ? failed(store, view.reason) : ''
      setShown({
        ...(view.status === 'fulfilled' ? { view: view.value } : { problem: refused }),
        ...(budget.status === 'fulfilled' && { budget: budget.value.budget }),
      })
    }
    load()
    const timer = setInterval(() => !document.hidden && load(), MINUTE)
    return () => {
      isOver = true
      clearInterval(timer)
    }
  }, [query, store.raised])
  const { view, problem, budget } = shown
  const save = () =>
    askText(store.visit, `${query}&format=csv`).then(
      (text) => download(`governor-usage-by-${by}.csv`, text),
      (error) => setShown({ ...shown, problem: failed(store, error) }),
    )
  const isEmpty = view && view.days.length === 0
  return (
    <main id="usage">
      <div class="usage-head">
        <h2>Usage</h2>
        <Choice of={GROUPINGS} chosen={by} href={(one) => `#/usage/${one}/${days}`} />
        <Choice
          of={SPANS.map((one) => `${one} days`)}
          chosen={`${days} days`}
          href={(one) => `#/usage/${by}/${Number.parseInt(one, 10)}`}
        />
        <span class="aside">
          <button
            type="button"
            aria-pressed={unit === 'tokens'}
            onClick={() => setUnit(unit === 'cost' ? 'tokens' : 'cost')}
          >
            Tokens
          </button>{' '}
          <button type="button" disabled={!view || isEmpty} onClick={save}>
            Download CSV
          </button>
        </span>
      </div>
      {problem && (
        <p class="say warn" role="status">
          {problem}
        </p>
      )}
      {!view && !problem && <p role="status">loading…</p>}
      {isEmpty && <p>Nothing was used in these {days} days. Point an agent at Governor, and it appears here.</p>}
      {view && !isEmpty && (
        <>
          <p class="about">
            <b class="big">{costOf(view.total)}</b> · {compact(view.total.input + view.total.output)} tokens ·{' '}
            {view.total.runs} {view.total.runs === 1 ? 'run' : 'runs'}, in {days} days
          </p>
          <Days view={view} since={since} unit={unit} />
          <Table view={view} />
        </>
      )}
      {budget && <Limits store={store} budget={budget} />}
    </main>
  )
}
