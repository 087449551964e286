/**
 * What a request gets while an operator has paused its agent: Governor's own text, or a wait; the model is not asked.
 */
import { fill } from '../../core/budget/budget-notices.ts'
import { type Pause, pauseOf } from '../../core/operator/pause.ts'
import { terminalOf } from '../../core/terminal.ts'
import type { Dialect, DialectRequest } from '../../dialect/dialect.ts'
import { reply } from '../../http/client.ts'
import { sendAnswer } from '../answer/answer-response.ts'
import { type Exchange, emitFor, pause as wait } from '../begin-exchange.ts'
import { type FoundSession, namesOf, placeInHeaders, type SessionPlace } from '../session/find-session.ts'
import { keepPlace } from '../session/keep-place.ts'

/** A request that is paused, as far as it was read. Nothing of it is counted. */
export interface PausedRequest {
  readonly pause: Pause
  readonly sent: DialectRequest
  readonly found?: FoundSession | undefined
  /** The iterations of its run so far, and their limit; 0 where it has none. */
  readonly made: number
  readonly max: number
}

/**
 * Returns the pause that keeps a request from the model; `undefined` if none does. `found`: its session, if that is
 * known.
 */
export function pauseFor({ services, route, accessKey }: Exchange, found?: SessionPlace): Pause | undefined {
  const { current } = services.pauses
  if (current.length === 0) return undefined
  const of = { session: namesOf(found).apiId, key: accessKey?.name, upstream: route.upstream.name }
  return pauseOf(current, of, services.now())
}

/** Returns true after an error for a request that is paused and cannot be read; it is the one that is no answer. */
export function refuseUnread(x: Exchange): boolean {
  const { services, client, route } = x
  if (services.pauses.current.length === 0) return false
  const found = placeInHeaders(client.head.headers, route, services)
  const pause = pauseFor(x, found)
  if (!pause) return false
  x.outcome = 'refused'
  client.body.resume()
  emitFor(x, { kind: 'paused_request', outcome: 'refused', ...namesOf(found) })
  const message = 'An operator has paused this agent, and Governor cannot read this request.'
  const left = Math.ceil(((pause.until ?? Number.POSITIVE_INFINITY) - services.now()) / 1_000)
  const retryAfter = ['retry-after', String(Math.min(60, Math.max(1, left)))]
  reply(client, 503, 'application/json', route.api.errorBody('overloaded', message, 'paused', 503), {}, retryAfter)
  return true
}

/**
 * Evaluates a request. While a pause that holds requests keeps it from the model, it waits, at most `stop.ask_timeout`,
 * and is evaluated again; after that, and under any other pause, it gets Governor's text, and this returns `answered`.
 */
export async function evaluateUnpaused<Found>(
  x: Exchange,
  dialect: Dialect,
  evaluate: () => Promise<Found | PausedRequest>,
): Promise<Found | 'answered'> {
  const { services, client } = x
  let end = 0
  for (;;) {
    const found = await evaluate()
    const isPaused = typeof found === 'object' && found !== null && 'pause' in found
    if (!isPaused) {
      // The wait is not Governor's own time.
      if (end > 0) {
        x.bodyReadAt = performance.now()
        emitFor(x, { kind: 'paused_request', outcome: 'resumed' })
      }
      return found
    }
    end ||= performance.now() + services.policies.stop.askTimeout
    const left = end - performance.now()
    if (client.isGone()) return 'answered'
    if (!found.pause.hold || left <= 0 || services.draining.aborted) {
      await answerPaused(x, dialect, found)
      return 'answered'
    }
    // The time of a pause may be over without a change.
    const untilOver = (found.pause.until ?? Number.POSITIVE_INFINITY) - services.now()
    await wait(x, Math.max(1, Math.min(left, untilOver)), services.pauses.subscribe)
  }
}

/** Answers a request that is no step of a run if it was paused while it waited; returns whether it was. */
export async function answerAsidePaused(x: Exchange, dialect: Dialect): Promise<boolean> {
  const { aside } = x
  const pause = aside && pauseFor(x, aside.found)
  if (!pause) return false
  await answerPaused(x, dialect, { pause, sent: aside.asked, found: aside.found, made: 0, max: 0 })
  return true
}

/** Answers a paused request with Governor's text and the end state. */
async function answerPaused(x: Exchange, dialect: Dialect, { sent, found, made, max }: PausedRequest): Promise<void> {
  const { model } = sent.conversation
  const names = namesOf(found)
  const meter = { name: 'iterations', used: made, max } as const
  const terminal = terminalOf({ meter, reason: 'paused' }, names.session ?? '', false)
  const text = fill(x.services.policies.budget.settings.policy.texts.paused, meter)
  x.decided = { model, verdict: 'stop', iteration: made, maxIterations: max || undefined, ...names }
  emitFor(x, { kind: 'paused_request', outcome: 'answered', ...names })
  const answer = { text, model, terminal, id: await keepPlace(x, sent, found) }
  sendAnswer({ exchange: x, dialect, sent }, answer, {
    'x-governor-iteration': max > 0 ? `${Math.min(made, max)}/${max}` : String(made),
    'x-governor-verdict': 'stop',
    'x-governor-session': names.session,
  })
}
