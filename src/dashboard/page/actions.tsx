/** What an operator can do to a session. */
import { useEffect, useState } from 'preact/hooks'
import type { SessionDetail } from '../../ops/sessions/api-schema.ts'
import {
  amount,
  isAtWork,
  labelOf,
  type MeterName,
  nextLimit,
  scopeText,
  whoseText,
} from '../../ops/sessions/labels.ts'
import { Dialog, type Question } from './dialog.tsx'
import { change, type Store, setForAll, steer } from './state.ts'

/** Returns the limit that a person would raise: that which is asked about, which counts, of iterations, or any. */
function limitOf({ asking, limit, max_iterations: max, threads, meters }: SessionDetail) {
  if (asking) return { name: asking.limit, max: asking.max }
  const all = [...threads.flatMap((thread) => thread.meters), ...meters].filter((meter) => meter.max > 0)
  const counts = all.find(({ name, max }) => name === limit?.meter && max === limit.max)
  return counts ?? (max > 0 ? { name: 'iterations' as const, max } : all[0])
}

/** Returns what a person gives for a limit, and what is proposed: a quarter more. */
function numberOf(meter: TimeLimit['meter'], max: number, least: number): NonNullable<Question['number']> {
  const isCost = meter === 'cost'
  const counted = isCost ? 'dollars' : meter.replace('_', ' ')
  return {
    label: counted.charAt(0).toUpperCase() + counted.slice(1),
    before: isCost ? max.toFixed(2) : String(max),
    proposed: nextLimit(meter, max),
    least,
    step: isCost ? 0.01 : 1,
  }
}

function extendQuestion(
  store: Store,
  detail: SessionDetail,
  { name, max }: { name: MeterName; max: number },
): Question {
  const isSteps = name === 'iterations' && max === detail.max_iterations
  return {
    title: `Extend ${labelOf(detail)}`,
    text: isSteps
      ? 'Its current runs may go on up to so many.'
      : 'Every limit of its current runs rises by the same share.',
    yes: 'Extend',
    // The browser counts steps from the least.
    number: numberOf(name, max, name === 'cost' ? Math.ceil(max * 100) / 100 : max + 1),
    act: (to) => {
      const body = isSteps ? { to } : { by: `${((to / max - 1) * 100).toFixed(6)}%` }
      steer(store, 'extend', body, () => `Extended to ${amount(name, to)}.`)
    },
  }
}

/** A limit of an hour, a day, a week or a month; `subject`: whose, unless it is for all requests together. */
interface TimeLimit {
  readonly scope: NonNullable<SessionDetail['limit']>['scope']
  readonly meter: NonNullable<SessionDetail['limit']>['meter']
  readonly max: number
  readonly per?: string
  readonly subject?: string | null
}

/** Returns the question that raises a limit of time. */
export function raiseQuestion(store: Store, { scope, meter, max, per = 'all', subject = null }: TimeLimit): Question {
  return {
    title: `Raise the limit of ${scopeText(scope)}?`,
    text:
      `It holds for ${subject === null ? 'all agents together' : whoseText({ per, subject })} until it begins anew; ` +
      'then the configured one holds again. Runs that ended at it go on with their next request.',
    yes: 'Raise',
    number: numberOf(meter, max, 0),
    act(to) {
      const setting = meter === 'cost' ? 'max_cost_usd' : `max_${meter}`
      setForAll(store, 'budget', { scope, per, subject, [setting]: to })
    },
  }
}

/** Shows a text, and puts it on the clipboard where the browser allows that. */
function copy(store: Store, text: string): void {
  change(store, { said: text })
  navigator.clipboard?.writeText(text).then(
    () => change(store, { said: `Copied: ${text}` }),
    () => undefined,
  )
}

export function CopyButtons({ store, id }: { store: Store; id: string }) {
  const address = `${location.origin}${location.pathname}`
  const curl = `curl -H "Authorization: Bearer $GOVERNOR_ADMIN_TOKEN" ${address}sessions/${id}`
  return (
    <>
      <button type="button" class="quiet" onClick={() => copy(store, `${address}#${id}`)}>
        Copy link
      </button>
      <button type="button" class="quiet" onClick={() => copy(store, curl)}>
        Copy curl
      </button>
    </>
  )
}

export function Actions({ store, detail }: { store: Store; detail: SessionDetail }) {
  const [question, setQuestion] = useState<Question>()
  const limit = limitOf(detail)
  const stop = {
    title: `Stop ${labelOf(detail)}?`,
    text: 'Its next request gets its last answer, and nothing that it did is lost.',
    yes: 'Stop with an answer',
    isGrave: true,
    act: () =>
      steer(store, 'stop', {}, ({ stopping }) =>
        stopping ? 'Its next request is the last.' : 'It had ended already.',
      ),
  }
  const reset = {
    title: `Reset ${labelOf(detail)}?`,
    text: 'Its current runs get a fresh budget, and count from 1.',
    yes: 'Reset',
    act: () => steer(store, 'reset', {}, () => 'It is reset.'),
  }
  const pause = {
    title: `Pause ${labelOf(detail)}?`,
    text: 'Its requests get an end, and no model is asked, until you resume it. Nothing that it did is lost.',
    yes: 'Pause',
    isGrave: true,
    act: () => void setForAll(store, 'pause', { session: detail.id }),
  }
  const isWatching = detail.threads.some(({ loop_guard_mode: mode }) => mode === 'observe')
  const setLoops = () => {
    const mode = isWatching ? null : 'observe'
    const done = isWatching ? 'Loops are ended again.' : 'Loops are only counted from here.'
    steer(store, 'loop-guard', { mode }, () => done)
  }
  const canStop = !detail.stopping && detail.state !== 'stopped'
  useEffect(() => {
    const { asked } = store
    // An address may hold a session's name. The page may not have come to the session that is asked for.
    if (!asked || (asked.of !== detail.id && asked.of !== detail.name)) return
    if (asked.action === 'stop' && canStop) setQuestion(stop)
    if (asked.action === 'extend' && limit) setQuestion(extendQuestion(store, detail, limit))
    store.asked = undefined
  }, [store.asked, detail.id])
  return (
    <>
      <p class="actions">
        <button
          type="button"
          class={isAtWork(detail) ? 'primary' : ''}
          disabled={!canStop}
          onClick={() => setQuestion(stop)}
        >
          Stop with an answer
        </button>
        {limit && (
          <button type="button" onClick={() => setQuestion(extendQuestion(store, detail, limit))}>
            Extend {amount(limit.name, limit.max)} → {amount(limit.name, nextLimit(limit.name, limit.max))}
          </button>
        )}
        {!detail.paused && (
          <button type="button" onClick={() => setQuestion(pause)}>
            Pause
          </button>
        )}
        <button type="button" onClick={setLoops} aria-pressed={isWatching}>
          {isWatching ? 'End loops again' : 'Only watch for loops'}
        </button>
        <button type="button" onClick={() => setQuestion(reset)}>
          Reset
        </button>
      </p>
      <p id="said" role="status">
        {store.said}
      </p>
      {question && <Dialog question={question} close={() => setQuestion(undefined)} />}
    </>
  )
}
