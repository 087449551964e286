/** What blocks calls of a model before its client gets them: the loop guard. */
import type { ToolCall } from './conversation.ts'
import { mayBlock } from './loop/escalation.ts'
import { blockText, fallbackText } from './loop/notice.ts'
import { decideBlocks } from './loop/observe.ts'
import type { Pattern } from './loop/patterns.ts'
import { inMode, type Request } from './request.ts'
import type { Changed, RunState, Session } from './session/session.ts'
import { type CountedRequest, changeThread, threadOf } from './session/transitions.ts'

/** A call that is blocked. */
export interface Block {
  /** The name of the tool. */
  readonly tool: string
  /** The loop that the call belongs to, and how often the call was made before. */
  readonly pattern: Pattern
  readonly count: number
  /** What the model reads as the result of the call. */
  readonly text: string
  /** What the client reads if the model gives no answer any more. */
  readonly fallback: string
}

/** What the guard finds in the calls of one response. */
export interface Judgement {
  /** One entry for each call, in order; `undefined`: the call passes. */
  readonly blocked: readonly (Block | undefined)[]
  /** The run ends with this response. */
  readonly endsRun: boolean
  /** What kept the guard from judging. */
  readonly fault?: Error | undefined
}

/** No call is blocked. */
export const NOTHING_BLOCKED: Judgement = { blocked: [], endsRun: false }

/** True if some call of a request's response could be blocked; else the response need not be read. */
export function mayBlockCalls({ loop, now }: Request, { thread, loopMode }: RunState): boolean {
  return loop.enabled && !!thread.loopState && mayBlock(thread.loopState.memory, inMode(loop, loopMode), now)
}

/**
 * Judges the calls of the response that answers a request; a fault blocks none. `isAgain`: Governor asked the model
 * again for this response. `now`: milliseconds since the epoch. Pure, as a store may run it twice.
 */
export function judgeCalls(
  session: Session,
  counted: CountedRequest,
  calls: readonly ToolCall[],
  { loop, facts }: Request,
  mode: RunState['loopMode'],
  isAgain: boolean,
  now: number,
): Changed<Judgement> {
  const loopState = threadOf(session, counted)?.loopState
  if (!loop.enabled || !loopState) return { session, result: NOTHING_BLOCKED }
  try {
    const { loopState: after, ...made } = decideBlocks(
      loopState,
      calls,
      inMode(loop, mode),
      facts.fingerprint,
      isAgain,
      now,
    )
    const blocked = made.blocked.map(
      (found): Block | undefined =>
        found && {
          tool: found.tool,
          pattern: found.pattern,
          count: found.count,
          text: blockText(found.tool, found.count),
          fallback: fallbackText(found.tool, found.count),
        },
    )
    // If all calls are blocked, the model is asked again and told why; else the next request carries a notice.
    const texts = new Set(blocked.flatMap((block) => block?.text ?? []))
    const isPartial = texts.size > 0 && blocked.includes(undefined)
    const pendingNotice = isPartial ? [...texts].join('\n\n') : after.pendingNotice
    return {
      session: changeThread(session, counted, { loopState: { ...after, pendingNotice } }),
      result: { blocked, endsRun: made.endsRun },
    }
  } catch (error) {
    return { session, result: { ...NOTHING_BLOCKED, fault: error as Error } }
  }
}
