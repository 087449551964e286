/**
 * The live page: the list of sessions, one session beside it, and what an operator can do. Text from outside is only
 * ever text.
 */
import { render } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { SessionPage } from '../../ops/sessions/api-schema.ts'
import { headParts, headText, MOST_SEARCHED, OBSERVES, ORDERS, pausedText, toneOf } from '../../ops/sessions/labels.ts'
import { raiseQuestion } from './actions.tsx'
import { Detail } from './detail.tsx'
import { Dialog } from './dialog.tsx'
import { keepDirection } from './direction.ts'
import { List, moveFocus } from './list.tsx'
import { Bar } from './parts.tsx'
import {
  askFor,
  change,
  connectionOf,
  focusRow,
  openStore,
  type Store,
  setForAll,
  show,
  signIn,
  signOut,
} from './state.ts'
import { Usage } from './usage.tsx'

type Summary = NonNullable<SessionPage['summary']>

function NotifyButton({ store }: { store: Store }) {
  if (!('Notification' in window) || !window.isSecureContext || Notification.permission !== 'default') return null
  const ask = () => Notification.requestPermission().then(() => change(store))
  return (
    <button type="button" onClick={ask} title="A notification of the browser when a run asks for you">
      Notify me
    </button>
  )
}

function PauseButton({ store }: { store: Store }) {
  const [isAsked, setAsked] = useState(false)
  const question = {
    title: 'Pause all agents?',
    text:
      'Their next requests get an end, and no model is asked, until you resume them. ' +
      'Nothing that they did is lost.',
    yes: 'Pause all',
    isGrave: true,
    act: () => void setForAll(store, 'pause'),
  }
  return (
    <>
      <button type="button" onClick={() => setAsked(true)}>
        Pause all
      </button>
      {isAsked && <Dialog question={question} close={() => setAsked(false)} />}
    </>
  )
}

/** What is paused, in red, each with a button that ends it. */
function PausedNow({ store }: { store: Store }) {
  const { paused = [] } = store.page?.summary ?? {}
  return (
    <>
      {paused.map((one) => {
        const { session, key, upstream } = one
        const scope = { session: session ?? undefined, key: key ?? undefined, upstream: upstream ?? undefined }
        return (
          <p key={`${session} ${key} ${upstream}`} class="paused" role="alert">
            <span>{pausedText(one)}</span>
            <button type="button" onClick={() => void setForAll(store, 'resume', scope)}>
              Resume
            </button>
          </p>
        )
      })}
    </>
  )
}

/** A limit of time for all requests together, which may be raised from here. */
function LimitStat(props: { store: Store; value: string; unit: string; limit: Summary['limits'][number] }) {
  const { store, value, unit, limit } = props
  const [isAsked, setAsked] = useState(false)
  const { used, max, share, resets_at } = limit
  return (
    <>
      <button
        type="button"
        class={`stat tone ${toneOf(share)}`}
        title={`Until ${new Date(resets_at).toLocaleString()}. Raise it`}
        onClick={() => setAsked(true)}
      >
        <b>{value}</b>
        {unit}
        <Bar used={used ?? 0} max={max} />
      </button>
      {isAsked && <Dialog question={raiseQuestion(store, limit)} close={() => setAsked(false)} />}
    </>
  )
}

/** The keys that the page knows, as those of `governor top`. */
const KEYS = {
  '/': 'search',
  '↑ ↓': 'go from session to session',
  Enter: 'open one',
  x: 'stop it with an answer',
  e: 'extend its limit',
  Escape: 'close it',
  '?': 'show these keys',
} as const

function Help({ store }: { store: Store }) {
  const box = useRef<HTMLDialogElement>(null)
  useEffect(() => box.current?.showModal(), [])
  return (
    <dialog ref={box} onClose={() => change(store, { isHelping: false })} aria-labelledby="keys">
      <h2 id="keys">Keys</h2>
      <dl class="keys">
        {Object.entries(KEYS).map(([key, does]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={() => box.current?.close()}>
        Close
      </button>
    </dialog>
  )
}

function Head({ store }: { store: Store }) {
  const { summary } = store.page ?? {}
  const { text, isLost } = connectionOf(store)
  return (
    <header>
      <h1>Governor</h1>
      {store.hasAccess && (
        <nav aria-label="Pages">
          <a href="#/" aria-current={store.view ? undefined : 'page'}>
            Live
          </a>
          <a href="#/usage" aria-current={store.view ? 'page' : undefined}>
            Usage
          </a>
        </nav>
      )}
      {summary && (
        <p class="head-line">
          {headParts(summary).map(({ value, unit, isAlert, limit }) =>
            limit ? (
              <LimitStat key={unit} store={store} value={value} unit={unit} limit={limit} />
            ) : (
              <span
                key={unit}
                class={isAlert ? 'stat alert' : 'stat'}
                title={unit === ' today' ? `Since ${new Date(summary.today.since).toLocaleString()}` : undefined}
              >
                <b>{value}</b>
                {unit}
              </span>
            ),
          )}
        </p>
      )}
      {store.page?.mode === 'observe' && <p class="chip warn">{OBSERVES}</p>}
      <p id="connection" role="status" class={isLost ? 'lost' : ''}>
        {text}
      </p>
      {store.hasAccess && (
        <div class="tools">
          <NotifyButton store={store} />
          <PauseButton store={store} />
          {store.page?.signed_in && (
            <button type="button" onClick={() => void signOut(store)}>
              Sign out
            </button>
          )}
          {!store.view && <Finding store={store} />}
        </div>
      )}
    </header>
  )
}

/** What is searched, and in which order it is shown. */
function Finding({ store }: { store: Store }) {
  return (
    <>
      <input
        id="search"
        type="search"
        aria-label="Search name, client, model, state"
        placeholder="Search"
        maxLength={MOST_SEARCHED}
        value={store.q}
        onKeyDown={(event) => event.key === 'ArrowDown' && moveFocus(event)}
        onInput={({ currentTarget }) => show(store, { q: currentTarget.value })}
      />
      <select
        aria-label="Order"
        value={store.sort}
        onChange={({ currentTarget }) => show(store, { sort: currentTarget.value as Store['sort'], direction: '' })}
      >
        {Object.entries(ORDERS).map(([sort, { word }]) => (
          <option key={sort} value={sort}>
            {word}
          </option>
        ))}
      </select>
    </>
  )
}

function SignIn({ store }: { store: Store }) {
  const submit = (event: SubmitEvent) => {
    event.preventDefault()
    const form = event.currentTarget as HTMLFormElement
    const token = String(new FormData(form).get('token'))
    form.reset()
    signIn(store, token)
  }
  return (
    <main>
      <form id="sign-in" onSubmit={submit}>
        <h2>The admin token is needed</h2>
        <p>Governor shows sessions to its own machine, and to people with GOVERNOR_ADMIN_TOKEN.</p>
        <label>
          Token <input name="token" type="password" autocomplete="off" required ref={(input) => input?.focus()} />
        </label>
        <button type="submit">Show sessions</button>
      </form>
    </main>
  )
}

function App({ store }: { store: Store }) {
  return (
    <>
      <Head store={store} />
      {store.hasAccess && <PausedNow store={store} />}
      {store.problem && (
        <p id="problem" role="alert">
          {store.problem}
        </p>
      )}
      {!store.hasAccess ? (
        <SignIn store={store} />
      ) : store.view ? (
        <Usage store={store} />
      ) : (
        <main class={store.selected ? 'both' : ''}>
          <List store={store} />
          {store.selected && <Detail key={store.selected} store={store} />}
        </main>
      )}
      {store.isHelping && <Help store={store} />}
    </>
  )
}

keepDirection()

const opened = openStore((store) => {
  const { summary } = store.page ?? {}
  const alert = summary && summary.need_you > 0 ? `(${summary.need_you}) ` : ''
  document.title = summary ? `${alert}${headText(summary)} · Governor` : 'Governor'
  const focused = document.activeElement
  render(<App store={store} />, document.body)
  // A row that moves loses the focus.
  const isLost = document.activeElement === document.body
  if (isLost && focused instanceof HTMLAnchorElement) focusRow(focused.hash, { preventScroll: true })
})

document.addEventListener('keydown', (event) => {
  const { key, target, ctrlKey, metaKey, altKey } = event
  if (document.querySelector('dialog[open]')) return
  if (key === 'Escape' && opened.selected) location.hash = ''
  const isTyping = target instanceof HTMLElement && target.matches('input, select, textarea')
  if (isTyping || ctrlKey || metaKey || altKey || !opened.hasAccess) return
  const search = document.getElementById('search')
  if (key === '?') change(opened, { isHelping: true })
  if (key === '/' && search) {
    search.focus()
    event.preventDefault()
  }
  // The list has its own keys while the focus is in it.
  if (target === document.body) moveFocus(event)
  if (key === 'x' || key === 'e') askFor(opened, key === 'x' ? 'stop' : 'extend')
})
