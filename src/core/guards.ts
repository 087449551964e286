/** What blocks calls of a model before its client gets them: one row for each guard. */
import type { ToolCall } from './conversation.ts'
import { blockCalls, endingLoop, mayBlock } from './loop/escalation.ts'
import { blockText, fallbackText } from './loop/loop-notices.ts'
import { INITIAL_LOOP_STATE } from './loop/loop-state.ts'
import { inMode } from './loop/patterns.ts'
import type { Request } from './request.ts'
import type { Changed, RunState, Session, Thread } from './session/session.ts'
import { type CountedRequest, threadOf, withThread } from './session/transitions.ts'
import type { CallGuardName, GuardEnd } from './terminal.ts'

/** A call that a guard blocks; it may be the end of the run. */
export interface Block extends GuardEnd {
  readonly tool: string
  /** What the model reads as the result of the call. */
  readonly text: string
}

/** What guards find in the calls of one response, and the faults that kept guards from it. */
export interface Judgement {
  /** One entry for each call, in order; `undefined`: the call passes. */
  readonly blocked: readonly (Block | undefined)[]
  /** The run ends with this response. */
  readonly endsRun: boolean
  readonly faults: readonly { readonly guard: CallGuardName; readonly error: Error }[]
}

/** No call is blocked. */
export const NOTHING_BLOCKED: Judgement = { blocked: [], endsRun: false, faults: [] }

/** The request that a response answers. */
export interface Judged {
  readonly request: Request
  readonly runState: RunState
  /** Governor asked the model again for this response. */
  readonly isAgain: boolean
  /** Milliseconds since the epoch. */
  readonly now: number
}

interface CallGuard {
  /** Names the guard in metrics and in the reason why a run ended. */
  readonly name: CallGuardName
  /** True if some call of a request's response could be blocked; else the response need not be read. */
  mayBlock(request: Request, runState: RunState): boolean
  /** Returns why a request is the last of its run; `undefined` if it is not. */
  endOf(request: Request, runState: RunState): GuardEnd | undefined
  /** Judges calls, and returns the thread that remembers it. Pure, as a store may run it twice. */
  judge(calls: readonly ToolCall[], thread: Thread, judged: Judged): Omit<Judgement, 'faults'> & { thread: Thread }
}

/** The guards; of several that block one call the first counts. */
export const GUARDS: readonly CallGuard[] = [
  {
    name: 'loop_guard',
    mayBlock({ loop, now }, { thread, loopMode }) {
      return loop.enabled && !!thread.loopState && mayBlock(thread.loopState.memory, inMode(loop, loopMode), now)
    },
    endOf({ loop }, { thread: { loopState }, loopMode }) {
      const found = loop.enabled && loopState ? endingLoop(loopState.memory, inMode(loop, loopMode)) : undefined
      return found && { guard: 'loop_guard', fallback: fallbackText(found.tool, found.count), loop: found }
    },
    judge(calls, thread, { request, runState, isAgain, now }) {
      const { loop, facts } = request
      const { loopState } = thread
      if (!loop.enabled || !loopState) return { ...NOTHING_BLOCKED, thread }
      const policy = inMode(loop, runState.loopMode)
      const made = blockCalls(loopState.memory, calls, policy, facts.fingerprint, isAgain, now)
      const blocked = made.blocked.map((found): Block | undefined => {
        if (!found) return undefined
        const { tool, count } = found
        const texts = { text: blockText(tool, count), fallback: fallbackText(tool, count) }
        return { guard: 'loop_guard', tool, ...texts, loop: found }
      })
      return { thread: { ...thread, loopState: { ...loopState, memory: made.memory } }, blocked, endsRun: made.endsRun }
    },
  },
]

/** Asks all guards about the calls of a response; a guard that fails blocks none. */
export function judgeCalls(
  session: Session,
  counted: CountedRequest,
  calls: readonly ToolCall[],
  judged: Judged,
): Changed<Judgement> {
  const known = threadOf(session, counted)
  if (!known) return { session, result: NOTHING_BLOCKED }
  let thread = known
  const blocked = new Array<Block | undefined>(calls.length).fill(undefined)
  const faults: Judgement['faults'][number][] = []
  let endsRun = false
  for (const guard of GUARDS) {
    try {
      const made = guard.judge(calls, thread, judged)
      thread = made.thread
      endsRun ||= made.endsRun
      for (const [at, block] of made.blocked.entries()) blocked[at] ??= block
    } catch (error) {
      faults.push({ guard: guard.name, error: error as Error })
    }
  }
  // If all calls are blocked, the model is asked again and told why; else the next request carries a notice.
  const texts = new Set<string>()
  for (const block of blocked) if (block) texts.add(block.text)
  const loopState =
    texts.size > 0 && blocked.includes(undefined)
      ? { ...(thread.loopState ?? INITIAL_LOOP_STATE), pendingNotice: [...texts].join('\n\n') }
      : thread.loopState
  const after = { ...thread, loopState }
  return { session: withThread(session, known, after), result: { blocked, endsRun, faults } }
}
