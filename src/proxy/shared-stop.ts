/** Asks for the last answer of a run once, however many of its requests reach the limit at the same time. */
import type { ServerResponse } from 'node:http'
import type { Exchange } from './begin-exchange.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { giveUp } from './hold-stop.ts'
import type { Services } from './services.ts'

type Stopped = Pick<EvaluatedRequest, 'evaluation'>

function closed(response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    if (response.closed) resolve()
    else response.once('close', resolve)
  })
}

/** Returns the thread of a request that is to be stopped; `undefined` if nobody can share its answer. */
function threadOf({ evaluation: { decision, handle, runState } }: Stopped): string | undefined {
  const session = handle.names.apiId
  return decision.kind === 'stop' && session !== undefined ? `${session} ${runState.thread}` : undefined
}

/**
 * Returns the request as it is to be handled; `undefined` once the client has left. If another request of its thread is being
 * stopped, it waits for that one and is evaluated again: then the run is over and has an answer. If the other one got none, it
 * asks itself.
 */
export async function shareStop<Request extends Stopped>(
  { stops }: Services,
  exchange: Exchange,
  request: Request,
  evaluateAgain: () => Promise<Request | undefined>,
): Promise<Request | undefined> {
  let current = request
  let hasWaited = false
  for (;;) {
    const thread = threadOf(current)
    // A recorded answer that this request cannot get, as a call that is an answer.
    const isRecorded = hasWaited && current.evaluation.runState.finalAnswer !== undefined
    if (thread === undefined || isRecorded) return current
    const end = closed(exchange.response)
    const other = stops.get(thread)
    if (!other) {
      stops.set(thread, end)
      end.then(() => stops.delete(thread))
      return current
    }
    await Promise.race([other, end])
    hasWaited = true
    await giveUp(current)
    if (exchange.isClientGone()) return undefined
    current = (await evaluateAgain()) ?? current
  }
}
