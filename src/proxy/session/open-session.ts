/** Counts a request in its session. */
import type { Request } from '../../core/request.ts'
import { countRequest } from '../../core/session/count-request.ts'
import { type Changed, NEW_SESSION, type RunState } from '../../core/session/session.ts'
import { adoptFirst, type CountedRequest } from '../../core/session/transitions.ts'
import { idOf, type SessionKey, sessionKey } from '../../store/store.ts'
import { runEnded } from '../../telemetry/event.ts'
import { countFault } from '../fault.ts'
import type { Services } from '../services.ts'
import { type FoundSession, takeFirstAnswer } from './find-session.ts'
import { keepTranscript } from './keep-transcript.ts'
import { handleOf, type SessionHandle } from './session-handle.ts'

/** Counts a request. If the store fails, the request is counted by its transcript alone. */
export async function openSession(
  services: Services,
  request: Request,
  found: FoundSession,
): Promise<{ readonly handle: SessionHandle; readonly runState: RunState }> {
  const { facts, thread } = request
  const key = found.id === undefined ? undefined : sessionKey(found.tenant, found.id)
  const counted = { fingerprint: facts.fingerprint, thread }
  const { session, result: runState } = await countIn(services, request, found, key, counted)
  if (runState.loopFault) countFault(services.emit, runState.loopFault, 'loop_guard')
  const begun = key === undefined ? session : undefined
  const transcript = keepTranscript(services, request, key, runState)
  const handle = handleOf({ services, request, found, key, counted, begun, runState, transcript })
  return { handle, runState }
}

async function countIn(
  { store, emit, now }: Services,
  request: Request,
  { tenant, prompt, begun = NEW_SESSION }: FoundSession,
  key: SessionKey | undefined,
  counted: CountedRequest,
): Promise<Changed<RunState>> {
  if (key === undefined) return countRequest(begun, request)
  try {
    const { session, result } = await store.update(key, (before = begun) => {
      const changed = countRequest(before, request)
      return { session: changed.session, result: changed }
    })
    if (result.ended) emit(runEnded(result.ended, idOf(key)))
    if (prompt === undefined || !result.isNew || result.iteration !== 2) return { session, result }
    // The session got its id with its second request: the first answer counts too.
    // Among conversations with the same beginning any answer will do.
    const first = await takeFirstAnswer(store, tenant, prompt)
    if (!first) return { session, result }
    const at = now()
    const adopt = (after = session) => adoptFirst(after, counted, result, first, at, request.tools)
    return { session, result: await store.update(key, adopt) }
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return countRequest(begun, request)
  }
}
