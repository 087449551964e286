/** Asks before something is done to a session. */
import { useEffect, useRef } from 'preact/hooks'

export interface Question {
  readonly title: string
  readonly text: string
  /** The word on the button. */
  readonly yes: string
  readonly isGrave?: boolean
  /** A number to give: what it is called, what it is now, and what is proposed. */
  readonly number?: {
    readonly label: string
    readonly before: string
    readonly proposed: number
    readonly least: number
    readonly step: number
  }
  /** Does it; with the number that was given. */
  readonly act: (number: number) => void
}

/** Keeps the second half of a double click from what lies behind a dialog that its first half closed. */
function dropRestOfClick(): void {
  const over = new AbortController()
  const drop = (event: MouseEvent) => {
    if (event.detail < 2) return over.abort()
    event.preventDefault()
    event.stopPropagation()
  }
  addEventListener('click', drop, { capture: true, signal: over.signal })
}

export function Dialog({ question, close }: { question: Question; close: () => void }) {
  const box = useRef<HTMLDialogElement>(null)
  useEffect(() => box.current?.showModal(), [])
  const { title, text, yes, isGrave, number, act } = question
  const leave = () => {
    box.current?.close()
    dropRestOfClick()
  }
  const submit = (event: SubmitEvent) => {
    event.preventDefault()
    const given = new FormData(event.currentTarget as HTMLFormElement).get('number')
    leave()
    act(Number(given))
  }
  return (
    <dialog ref={box} onClose={close} aria-labelledby="question">
      <form onSubmit={submit}>
        <h2 id="question">{title}</h2>
        {number && (
          <label class="number-field">
            {number.label} {number.before} →{' '}
            <input
              name="number"
              type="number"
              min={number.least}
              step={number.step}
              // Not its value: the page is drawn again while somebody types.
              defaultValue={String(number.proposed)}
              required
              onFocus={({ currentTarget }) => currentTarget.select()}
            />
          </label>
        )}
        <p>{text}</p>
        <p class="actions">
          <button type="submit" class={isGrave ? 'primary' : ''}>
            {yes}
          </button>
          <button type="button" onClick={leave}>
            Cancel
          </button>
        </p>
      </form>
    </dialog>
  )
}
