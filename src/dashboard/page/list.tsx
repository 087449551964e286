/** The list of sessions: those that need a person first. */
import type { ComponentChild } from 'preact'
import { useMemo } from 'preact/hooks'
import type { SessionRow } from '../../ops/sessions/api-schema.ts'
import {
  clock,
  compact,
  doing,
  GROUP_NAMES,
  GROUPS,
  isAtWork,
  labelOf,
  limitNote,
  limitText,
  money,
  ORDERS,
  rate,
  shortModel,
} from '../../ops/sessions/labels.ts'
import { Bar, Chip } from './parts.tsx'
import { hold, PAGE_ROWS, type Store, show } from './state.ts'

function Spark({ tokens }: { tokens: readonly number[] }) {
  const most = Math.max(1, ...tokens)
  const step = 72 / Math.max(1, tokens.length - 1)
  const points = tokens.map((one, at) => `${(1 + at * step).toFixed(1)} ${(23 - (20 * one) / most).toFixed(1)}`)
  const newest = tokens.at(-1)
  if (newest === undefined) return null
  return (
    <>
      {compact(newest)}
      {points.length > 1 && (
        <svg class="spark" viewBox="0 0 74 26" role="img" aria-label={`Tokens per iteration, newest ${newest}`}>
          <path d={`M${points.join('L')}`} />
        </svg>
      )}
    </>
  )
}

function Name({ row }: { row: SessionRow }) {
  const { agents } = row
  const what = [doing(row), agents.total > 1 && `${agents.alive} of ${agents.total} agents`].filter(Boolean)
  const known = [row.client, shortModel(row.model)].filter(Boolean)
  const label = labelOf(row)
  return (
    <>
      <span class="who">
        <a href={`#${row.id}`} title={row.name ?? row.id}>
          <bdi>{label}</bdi>
        </a>
        <Chip row={row} />
      </span>
      <bdi class="sub">
        {label === row.name && (
          <>
            <span class="narrow">{known.map((one) => `${one} · `)}</span>since {clock(row.started_at)}
            {what.length > 0 && ' · '}
          </>
        )}
        {what.join(' · ')}
      </bdi>
    </>
  )
}

/** The limit that counts; without one, the iterations. */
function Limit({ row }: { row: SessionRow }) {
  const { limit } = row
  const note = limitNote(row)
  return (
    <>
      {limitText(row)}
      <Bar used={limit?.used ?? 0} max={limit?.max ?? 0} isOver={!isAtWork(row)} />
      {note && <small>{note}</small>}
    </>
  )
}

function Cost({ row }: { row: SessionRow }) {
  const perMinute = rate(row)
  return (
    <>
      {money(row)}
      {perMinute === '?' && <small>no price</small>}
      {perMinute && perMinute !== '?' && (
        <small>
          {perMinute}
          <wbr />
          <span class="unit">/min</span>
        </small>
      )}
    </>
  )
}

interface Column {
  readonly head: string
  readonly sort: keyof typeof ORDERS
  readonly cell: (row: SessionRow) => ComponentChild
  /** Its widths in a grid: where there is room, in half a window, on a phone. It is shown only where it has one. */
  readonly widths: readonly [string, string?, string?]
  readonly class?: 'number' | 'curve' | 'limit'
}

/** The columns, from left to right. */
const COLUMNS: readonly Column[] = [
  {
    head: 'Session',
    sort: 'name',
    widths: ['minmax(0, 2fr)', 'minmax(0, 1fr)', 'minmax(0, 1fr)'],
    cell: (row) => <Name row={row} />,
  },
  { head: 'Client', sort: 'client', widths: ['minmax(0, 0.6fr)'], cell: ({ client }) => <bdi>{client ?? ''}</bdi> },
  { head: 'Key', sort: 'key', widths: ['minmax(0, 0.5fr)'], cell: ({ key }) => <bdi>{key ?? ''}</bdi> },
  {
    head: 'Model',
    sort: 'model',
    widths: ['minmax(0, 0.8fr)'],
    cell: ({ model }) => <bdi title={model ?? ''}>{shortModel(model) ?? ''}</bdi>,
  },
  {
    head: 'Limit',
    sort: 'limit',
    widths: ['130px', '112px', '108px'],
    class: 'limit',
    cell: (row) => <Limit row={row} />,
  },
  { head: 'Cost', sort: 'cost', widths: ['96px', '82px', '74px'], class: 'number', cell: (row) => <Cost row={row} /> },
  {
    head: 'Tokens',
    sort: 'tokens',
    widths: ['90px', '74px'],
    class: 'curve',
    cell: (row) => <Spark tokens={row.tokens_per_iteration} />,
  },
]

/** The layout up to which a column is shown, for the style sheet: that of a phone shows all that are left. */
const LAYOUTS = ['wide', 'half', 'phone'] as const

function classOf({ widths, class: name }: Column): string {
  return `${name ?? ''} ${LAYOUTS[widths.length - 1]}`
}

/** Returns the widths of the columns that each layout shows, for the style sheet. */
function widthsOf(columns: readonly Column[]): Record<string, string> {
  const rows = LAYOUTS.map((name, at) => [`--${name}`, columns.flatMap(({ widths }) => widths[at] ?? []).join(' ')])
  return Object.fromEntries(rows)
}

/** Returns the columns that are shown: that of keys only where a session has one. */
function columnsOf({ rows }: Store): readonly Column[] {
  for (const { key } of rows.values()) if (key !== null) return COLUMNS
  return COLUMNS.filter(({ head }) => head !== 'Key')
}

/** A line that stays as it was is not drawn again; a question that runs counts down. */
function Line({ row, isOpen, columns }: { row: SessionRow; isOpen: boolean; columns: readonly Column[] }) {
  const line = () => (
    <tr role="row" aria-current={isOpen}>
      {columns.map((column) => (
        <td key={column.head} role="cell" class={classOf(column)}>
          {column.cell(row)}
        </td>
      ))}
    </tr>
  )
  return useMemo(line, [row, isOpen, columns.length, row.asking ? Date.now() : 0])
}

function GroupRows(props: { store: Store; group: Store['places'][number]['group']; columns: readonly Column[] }) {
  const { store, group, columns } = props
  const places = store.places.filter((place) => place.group === group)
  if (places.length === 0) return null
  const open = store.detail?.id ?? store.selected
  return (
    <tbody role="rowgroup">
      {group && (
        <tr role="row" class="group">
          <th role="rowheader" scope="rowgroup" colSpan={columns.length}>
            {group}
          </th>
        </tr>
      )}
      {places.map(({ id }) => {
        const row = store.rows.get(id)
        return row && <Line key={id} row={row} isOpen={id === open} columns={columns} />
      })}
    </tbody>
  )
}

/** A title that sorts: first in its own direction, then in the other one, then by risk again. */
function Head({ store, column }: { store: Store; column: Column }) {
  const { head, sort } = column
  const [own, other] = ORDERS[sort].isText ? (['asc', 'desc'] as const) : (['desc', 'asc'] as const)
  const now = store.sort === sort ? store.direction || own : ''
  const next = now === '' ? { sort, direction: own } : now === own ? { sort, direction: other } : BY_RISK
  return (
    <th
      role="columnheader"
      class={classOf(column)}
      aria-sort={now === '' ? undefined : now === 'asc' ? 'ascending' : 'descending'}
    >
      <button type="button" onClick={() => show(store, next)}>
        {head}
        <span aria-hidden="true">{now === 'asc' ? ' ▲' : now === 'desc' ? ' ▼' : ''}</span>
      </button>
    </th>
  )
}

const BY_RISK = { sort: 'risk', direction: '' } as const

/** How many sessions there are in each group, each a button that shows those alone, and how many are shown. */
function Filters({ store }: { store: Store }) {
  const { page, group, q } = store
  const { summary } = page ?? {}
  if (!page || !summary || summary.sessions === 0) return null
  const names = Object.entries(GROUP_NAMES) as [keyof typeof GROUP_NAMES, string][]
  return (
    <div id="filters" role="group" aria-label="Show">
      <button type="button" aria-pressed={group === ''} onClick={() => show(store, { group: '' })}>
        {summary.sessions} in all
      </button>
      {names.map(([name, word]) => {
        const count = summary.groups[name]
        const text = name === 'need_you' && count === 1 ? 'needs you' : word.toLowerCase()
        const isShown = count > 0 || group === name
        return (
          isShown && (
            <button
              key={name}
              type="button"
              class={name}
              aria-pressed={group === name}
              onClick={() => show(store, { group: group === name ? '' : name })}
            >
              {count} {text}
            </button>
          )
        )
      })}
      <span role="status">{(q || group) && page.total > 0 && `${page.total} of ${summary.sessions} match`}</span>
    </div>
  )
}

/** What a person types who has no session yet. */
function NoSessions() {
  return (
    <>
      No sessions yet. Point an agent at Governor, and it appears here:
      <pre>{`ANTHROPIC_BASE_URL=${location.origin} claude\nOPENAI_BASE_URL=${location.origin}/v1 python agent.py`}</pre>
    </>
  )
}

function More({ store }: { store: Store }) {
  const { page, places, q, group, wanted } = store
  if (!page) return null
  if (!page.complete) return <p id="more">Sessions may be missing: Governor could not read its store to the end.</p>
  if (page.total === 0) {
    const noMatch = q ? `No session matches “${q}”.` : group && 'No session is in this group now.'
    return <div id="more">{noMatch || <NoSessions />}</div>
  }
  if (page.total <= places.length) return null
  return (
    <p id="more">
      {places.length} of {page.total}{' '}
      <button type="button" onClick={() => show(store, { wanted: wanted + PAGE_ROWS })}>
        Show more
      </button>
    </p>
  )
}

/** Up and down go from session to session, the first time to the first one. */
export function moveFocus(event: KeyboardEvent): void {
  const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key]
  if (!by) return
  const links = [...document.querySelectorAll<HTMLElement>('#list a')]
  const next = links[links.indexOf(document.activeElement as HTMLElement) + by]
  if (!next) return
  event.preventDefault()
  next.focus()
}

export function List({ store }: { store: Store }) {
  const columns = columnsOf(store)
  return (
    <section
      id="list-box"
      aria-label="Sessions"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a part that scrolls can be scrolled with keys
      tabIndex={0}
      onPointerEnter={({ pointerType }) => hold(store, pointerType === 'mouse')}
      onPointerLeave={() => hold(store, false)}
      onKeyDown={moveFocus}
    >
      <Filters store={store} />
      {store.places.length > 0 && (
        <table id="list" role="table" style={widthsOf(columns)}>
          <caption>Sessions, those that need you first</caption>
          <thead role="rowgroup">
            <tr role="row">
              {columns.map((column) => (
                <Head key={column.head} store={store} column={column} />
              ))}
            </tr>
          </thead>
          {(['', ...GROUPS] as const).map((group) => (
            <GroupRows key={group} store={store} group={group} columns={columns} />
          ))}
        </table>
      )}
      <More store={store} />
    </section>
  )
}
