/**
 * Holds a request that a limit would stop, until an operator extends or stops its run. The client gets no byte
 * meanwhile: a comment or an unknown event breaks clients, and nobody knows yet which response it will be.
 */
import type { LimitName, Meter } from '../core/budget/meters.ts'
import { noteDelivery } from '../core/session/transitions.ts'
import type { HoldOutcome } from '../telemetry/event.ts'
import { countFault } from './fault.ts'
import { endProbe } from './storm.ts'
import type { Turn } from './turn.ts'

/**
 * Returns the request as it is to be handled: at once, unless a limit stops it and an operator is asked; `undefined`
 * once the client has left. `evaluateAgain`: decides on the request once more. After a fault the request is stopped: a
 * limit that was reached stays reached.
 */
export async function holdStop(turn: Turn, evaluateAgain: () => Promise<Turn | undefined>): Promise<Turn | undefined> {
  const { services, exchange } = turn
  let held = turn
  let asked: Meter<LimitName> | undefined
  try {
    for (;;) {
      const limit = limitToAskAbout(held)
      // A limit that was asked about and is reached still, as the operator has not raised it far enough.
      if (!limit || (asked?.name === limit.name && asked.max === limit.max)) return held
      asked = limit
      const outcome = await hold(held, limit)
      if (!outcome) return held
      services.emit({ kind: 'hold_ended', ...held.handle.names, outcome })
      if (outcome === 'no_answer' || outcome === 'drained') return held
      // The request is sent again, by its client or by the next evaluation.
      await giveUp(held)
      if (outcome === 'client_gone') return undefined
      held = (await evaluateAgain()) ?? held
    }
  } catch (error) {
    countFault(services.emit, error as Error)
    return held
  } finally {
    // The wait is not Governor's own time.
    if (asked) exchange.noteBodyRead()
  }
}

/** Returns the limit that stops a request, if an operator is to be asked about it. */
function limitToAskAbout({ services, exchange, decision }: Turn): Meter<LimitName> | undefined {
  const { policies, draining } = services
  if (!policies.stop.asks || decision.kind !== 'stop' || decision.limit.reason !== undefined) return undefined
  // A higher limit does not make a price known. An agent that asks for its last answer itself gets no notice.
  const hasNotice = decision.speech.notice !== undefined
  return !hasNotice || draining.aborted || exchange.isClientGone() ? undefined : decision.limit.meter
}

/** Counts a sending of a request that got no answer as one that its client gave up. */
export async function giveUp(turn: Turn): Promise<void> {
  await turn.handle.change(noteDelivery, 'client_left', turn.runState.isRetry)
  await endProbe(turn, false)
}

/** Waits for an answer to the question about a limit; returns `undefined` if the question is over. */
async function hold({ services, exchange, handle }: Turn, limit: Meter<LimitName>): Promise<HoldOutcome | undefined> {
  const { now, draining, policies } = services
  const { question } = handle
  const { askTimeout } = policies.stop
  let end: (outcome: HoldOutcome) => void = () => undefined
  const ended = new Promise<HoldOutcome>((resolve) => {
    end = resolve
  })
  const look = () => void question.isAnswered().then((isAnswered) => isAnswered && end('answered'))
  const leave = () => end('client_gone')
  const drain = () => end('drained')
  // Before the question is asked, so that no answer is missed.
  const unsubscribe = question.onChange(look)
  let timer: NodeJS.Timeout | undefined
  try {
    const asked = await question.ask(limit, now() + askTimeout)
    // The question may come from a replica with another clock.
    const left = Math.min((asked?.until ?? 0) - now(), askTimeout)
    if (!asked || left <= 0) return undefined
    const { name: meter, used, max } = limit
    if (asked.isNew)
      exchange.emit({
        kind: 'operator_asked',
        ...handle.names,
        meter,
        used: Math.min(used, max),
        max,
        seconds: Math.round(left / 1_000),
        until: now() + left,
      })
    exchange.response.once('close', leave)
    draining.addEventListener('abort', drain)
    timer = setTimeout(end, left, 'no_answer')
    if (exchange.isClientGone()) leave()
    if (draining.aborted) drain()
    look()
    const outcome = await ended
    // The message about an answer may be lost.
    const isLate = outcome === 'no_answer' && (await question.isAnswered())
    return isLate ? 'answered' : outcome
  } finally {
    clearTimeout(timer)
    exchange.response.off('close', leave)
    draining.removeEventListener('abort', drain)
    unsubscribe()
  }
}
