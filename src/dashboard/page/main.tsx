/** The live page: the list of sessions, one session beside it, and what an operator can do. Text from outside is only ever text. */
import { render } from 'preact'
import { useState } from 'preact/hooks'
import { headParts, headText, OBSERVES, ORDERS, pausedText } from '../../ops/sessions/labels.ts'
import { Detail } from './detail.tsx'
import { Dialog } from './dialog.tsx'
import { List } from './list.tsx'
import { change, connectionOf, openStore, type Store, setPause, show, signIn, signOut } from './state.ts'

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
    text: 'Their next requests get an end, and no model is asked, until you resume them. Nothing that they did is lost.',
    yes: 'Pause all',
    isGrave: true,
    act: () => void setPause(store, 'pause'),
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
            <button type="button" onClick={() => void setPause(store, 'resume', scope)}>
              Resume
            </button>
          </p>
        )
      })}
    </>
  )
}

function Head({ store }: { store: Store }) {
  const { summary } = store.page ?? {}
  const { text, isLost } = connectionOf(store)
  return (
    <header>
      <h1>Governor</h1>
      {summary && (
        <p class="head-line">
          {headParts(summary).map(({ value, unit, isAlert }) => (
            <span
              key={unit}
              class={isAlert ? 'stat alert' : 'stat'}
              title={unit === ' today' ? `Since ${new Date(summary.today.since).toLocaleString()}` : undefined}
            >
              <b>{value}</b>
              {unit}
            </span>
          ))}
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
          <input
            type="search"
            aria-label="Search name, client, model"
            placeholder="Search"
            value={store.q}
            onInput={({ currentTarget }) => show(store, { q: currentTarget.value })}
          />
          <select
            aria-label="Order"
            value={store.sort}
            onChange={({ currentTarget }) => show(store, { sort: currentTarget.value })}
          >
            {Object.entries(ORDERS).map(([sort, { word }]) => (
              <option key={sort} value={sort}>
                {word}
              </option>
            ))}
          </select>
        </div>
      )}
    </header>
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
        <p>Governor shows sessions to its own machine, or to whoever has GOVERNOR_ADMIN_TOKEN.</p>
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
      {store.hasAccess ? (
        <main class={store.selected ? 'both' : ''}>
          <List store={store} />
          {store.selected && <Detail key={store.selected} store={store} />}
        </main>
      ) : (
        <SignIn store={store} />
      )}
    </>
  )
}

openStore((store) => {
  const { summary } = store.page ?? {}
  const alert = summary && summary.need_you > 0 ? `(${summary.need_you}) ` : ''
  document.title = summary ? `${alert}${headText(summary)} · Governor` : 'Governor'
  render(<App store={store} />, document.body)
})

document.addEventListener('keydown', ({ key }) => {
  if (key === 'Escape' && location.hash && !document.querySelector('dialog[open]')) location.hash = ''
})
