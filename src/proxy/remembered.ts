/** One counted request in the store: where it stands in its session, and what becomes of it there. */
import { NO_CONTEXTS, type SessionContexts } from '../core/context.ts'
import type { ToolCall } from '../core/conversation.ts'
import {
  acknowledged,
  adoptFirst,
  answered,
  type CountedRequest,
  end,
  giveBack,
  loosen,
  refuseIn,
  said,
  warned,
} from '../core/counted.ts'
import { type Guarded, type Refused, refuse } from '../core/guard.ts'
import { hashOf } from '../core/hash.ts'
import type { LoopPolicy } from '../core/loop-guard.ts'
import { NEW_SESSION, observe, type Position, type Session } from '../core/session.ts'
import type { Sighting } from '../core/sighting.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import type { Link, SessionKey } from '../store/store.ts'
import type { ProxyContext } from './context.ts'
import { presentable } from './identity.ts'
import type { Answered } from './tap.ts'

export interface Remembered {
  readonly position: Position
  /** The provider gave an answer, which took something and may be gone on from. */
  answered(answer: Answered): Promise<void>
  /** Remembers what is to be sent along when the client goes on from a response. */
  owe(response: string, debt: Pick<Link, 'owed' | 'as'>): Promise<void>
  /** The model was told that its budget is nearly used up. */
  warned(): Promise<void>
  /** The model was shown, or the client denied, what the client's history will not tell. */
  said(): Promise<void>
  /** Reasoning in this conversation is bound to what Governor said. */
  loosen(): Promise<void>
  /** Was it, in this request? */
  wasWarned(): boolean
  /** The answer to a warning called nothing. */
  acknowledged(): Promise<void>
  /** Judges the calls of the response; a store that fails refuses none. */
  refuse(calls: readonly ToolCall[]): Promise<Refused>
  /** The provider gave no answer: the iteration is not used up. */
  giveBack(): Promise<void>
  /** Something became known of the windows of the session's models. */
  contexts(change: (contexts: SessionContexts) => SessionContexts): Promise<void>
  /** The run is over with this answer. */
  end(answer: FinalAnswer): Promise<void>
}

/** A request that is to be counted. */
export interface Counting {
  readonly tenant: string
  /** The session's id in the store; `undefined` where nothing names it yet. */
  readonly id: string | undefined
  /** The session's id as the client knows it. */
  readonly sessionId: string | undefined
  /** The id is made of how the conversation began. */
  readonly isDerived: boolean
  readonly thread: string
  /** What the session began with, where that is known and the session is not there yet. */
  readonly begun: Session | undefined
  readonly sighting: Sighting
  /** The conversation, by its id, that the provider adds to. */
  readonly within: string | undefined
  readonly loop: LoopPolicy
  /** Takes the request in for the loop guard. */
  readonly follow: ((guarded: Guarded) => Guarded) | undefined
  /** Takes in for the loop guard what a response called. */
  readonly note: ((guarded: Guarded, calls: readonly ToolCall[]) => Guarded) | undefined
}

const NOTHING_REFUSED: Refused = { refusals: [], endsRun: false }

/** Where the first answer of a conversation is kept that has no name before its second request. */
function firstKey({ tenant, sighting }: Counting): SessionKey {
  return { tenant, id: hashOf('first', sighting.system, sighting.humans[0] ?? '') }
}

/** A session that has just been named by its first answer gets what that took, which was kept apart. */
async function withFirst(
  context: ProxyContext,
  counting: Counting,
  key: SessionKey,
  counted: CountedRequest,
  position: Position,
): Promise<Position> {
  if (!counting.isDerived || !position.isNew || position.iteration !== 2) return position
  const { store } = context
  const first = await store.takeFirst(firstKey(counting))
  if (!first) return position
  return store.update(key, (session) => {
    const adopted = adoptFirst(session ?? NEW_SESSION, counted, position, first, context.now())
    return { session: adopted.session, result: adopted.position }
  })
}

/** Counts a request. A store that fails loses its memory of the session, and the transcript goes on telling. */
export async function remember(context: ProxyContext, counting: Counting): Promise<Remembered> {
  const { store } = context
  const { tenant, id, sessionId, isDerived, thread, sighting, loop, within, follow, note } = counting
  const key = id === undefined ? undefined : { tenant, id }
  const askedAt = context.now()
  const counted: CountedRequest = { fingerprint: sighting.fingerprint, thread }
  const count = (session: Session | undefined) => {
    const next = observe(
      session ?? counting.begun ?? NEW_SESSION,
      sighting,
      thread,
      askedAt,
      isDerived,
      follow,
    )
    return { session: next.session, result: next.position }
  }
  const byTranscript = () => count(undefined).result
  const place = async (): Promise<Position> => {
    // Without a name there is nothing to remember it by.
    if (!key) return byTranscript()
    try {
      return await withFirst(context, counting, key, counted, await store.update(key, count))
    } catch {
      context.emit({ kind: 'failed_open', reason: 'store' })
      return byTranscript()
    }
  }
  const change = async (by: (session: Session) => Session, name = key): Promise<void> => {
    if (!name) return
    await store.update(name, (session) => ({ session: by(session ?? NEW_SESSION), result: undefined }))
  }
  const link = async (ids: readonly string[], to: string, session: string): Promise<void> => {
    for (const one of ids) await store.link(tenant, one, { id: to, session })
  }
  let isWarned = false
  let settled: Promise<void> = Promise.resolve()
  const takeIn = async ({ usage, id: response, conversation, calls = [], item }: Answered): Promise<void> => {
    const ids = [response, conversation ?? within].flatMap((name) =>
      name === undefined ? [] : [presentable(name)],
    )
    const facts = {
      usage,
      ids,
      requestBytes: sighting.bytes ?? 0,
      follow: note && calls.length > 0 ? (guarded: Guarded) => note(guarded, calls) : undefined,
    }
    if (id !== undefined) {
      await change((session) => answered(session, counted, facts))
      return link(ids, id, sessionId ?? '')
    }
    // What an answer cost may come after it; one that nobody owns yet has been put away.
    if (response === undefined && usage.input + usage.output === 0) return
    // Whether the client goes on by its id or sends it again, the second request shows.
    await store.keepFirst(firstKey(counting), { askedAt, usage })
    const [first] = ids
    if (first === undefined) return
    // A session that has no name yet is known by its first response, and begins when a client goes on from that.
    const began = hashOf('response', first)
    const begun = answered(count(undefined).session, counted, facts)
    // Clients that refer to what was said before begin with the first item of the first response.
    const names = item === undefined ? ids : [...ids, presentable(item)]
    for (const name of names) await store.link(tenant, name, { id: began, session: began, begun })
  }
  const position = await place()
  /** The calls of a response to this request were judged. */
  let wasJudged = false
  return {
    position,
    answered(answer) {
      settled = takeIn(answer)
      return settled
    },
    async owe(response, debt) {
      await settled
      const name = presentable(response)
      const own = id === undefined ? undefined : { id, session: sessionId ?? '' }
      const known = (await store.linked(tenant, name)) ?? own
      if (known) await store.link(tenant, name, { ...known, ...debt })
    },
    async refuse(calls) {
      if (!key) return NOTHING_REFUSED
      const isAgain = wasJudged
      wasJudged = true
      try {
        return await store.update(key, (session) => {
          const judged = refuseIn(session ?? NEW_SESSION, counted, (guarded) =>
            refuse(guarded, calls, loop, counted.fingerprint, isAgain),
          )
          return { session: judged.session, result: judged.refused }
        })
      } catch {
        context.emit({ kind: 'failed_open', reason: 'store' })
        return NOTHING_REFUSED
      }
    },
    contexts: (by) => change((session) => ({ ...session, contexts: by(session.contexts ?? NO_CONTEXTS) })),
    said: () => (position.hasSaid ? Promise.resolve() : change((session) => said(session, counted))),
    loosen: () => change((session) => loosen(session, counted)),
    acknowledged: () => change((session) => acknowledged(session, counted)),
    warned() {
      isWarned = true
      return change((session) => warned(session, counted))
    },
    wasWarned: () => isWarned,
    giveBack: () => change((session) => giveBack(session, counted)),
    end: (answer) => change((session) => end(session, counted, answer)),
  }
}
