/** Small parts that list and detail share. */
import { stateOf, toneOf } from '../../ops/sessions/labels.ts'

/** What a session or an agent does, in its colour. */
export function Chip({ row }: { row: Parameters<typeof stateOf>[0] }) {
  const { text, tone } = stateOf(row)
  return <span class={`chip ${tone} ${row.state}`}>{text}</span>
}

/** How much of a limit is used; nothing where there is no limit. */
export function Bar({ used, max, isOver }: { used: number; max: number; isOver?: boolean }) {
  if (max <= 0) return null
  const share = Math.min(1, used / max)
  const tone = isOver ? 'quiet' : toneOf(share)
  return (
    <span class="bar" aria-hidden="true">
      <i class={tone} style={{ width: `${Math.round(share * 100)}%` }} />
    </span>
  )
}

/** A part of a session with a heading. */
export function Section(props: { title: string; note?: string; children: preact.ComponentChildren }) {
  const { title, note, children } = props
  return (
    <section aria-label={title}>
      <h3>
        {title} {note && <small>· {note}</small>}
      </h3>
      {children}
    </section>
  )
}
