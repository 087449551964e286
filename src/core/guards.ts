/** What blocks calls of a model before its client gets them: one row for each guard. */
import { ANSWER_NOW } from './budget/budget-notices.ts'
import type { ToolCall } from './conversation/conversation.ts'
import type { BudgetPolicy } from './decide.ts'
import { blockCalls, endingLoop, mayBlock } from './loop/escalation.ts'
import { blockText, fallbackText } from './loop/loop-notices.ts'
import { inMode } from './loop/patterns.ts'
import type { Request } from './request.ts'
import { agentsIn, spawnedBy, withoutSpawned, withSpawned } from './session/agents.ts'
import {
  type Changed,
  type GuardMemory,
  type RunState,
  retryOf,
  type Session,
  type Thread,
  withRecent,
} from './session/session.ts'
import { type CountedRequest, threadOf, withThread } from './session/transitions.ts'
import type { CallGuardName, GuardEnd } from './terminal.ts'
import { matchesAny } from './text/glob.ts'
import { errorOf } from './thrown.ts'

/** The result of a call that no guard has blocked, but that no client got either. */
export const NOT_EXECUTED = '[GOVERNOR] This call was not executed.'

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
  /** The block that ends the run with this response. */
  readonly end?: Block | undefined
  readonly faults: readonly { readonly guard: CallGuardName; readonly error: Error }[]
}

/** No call is blocked. */
export const NOTHING_BLOCKED: Judgement = { blocked: [], faults: [] }

/** The request that a response answers. */
interface Judged {
  readonly request: Request
  readonly runState: RunState
  /** Governor asked the model again for this response. */
  readonly isAgain: boolean
  /** Milliseconds since the epoch. */
  readonly now: number
}

/** What one guard finds in calls, and what it remembers. */
interface Finding {
  /** One entry for each call, in order; `undefined`: the call passes. */
  readonly blocked: readonly (Block | undefined)[]
  readonly endsRun?: boolean
  /** What it remembers of the session from now on; unset: the same as before. */
  readonly memory?: GuardMemory
  /** What it changes in the thread. */
  readonly inThread?: Partial<Thread>
}

/** A guard: its judgement of calls, its memory, and how it ends a run. Pure, as a store may run it twice. */
export interface CallGuard {
  /** Names the guard in metrics, in the reason why a run ended, and its memory in `Session.guards`. */
  readonly name: CallGuardName
  /**
   * What happens if the model was asked again twice and all its calls are blocked once more. `end`: the run ends;
   * `pass`: the run goes on if the model, asked once without the tools of these calls, answers with anything else.
   */
  readonly onRefusedAgain: 'end' | 'pass'
  /** True if some call of a request's response could be blocked; else the response need not be read. */
  mayBlock(request: Request, runState: RunState): boolean
  /** Returns why a request is the last of its run; `undefined` if it is not. */
  endOf(request: Request, runState: RunState): GuardEnd | undefined
  /** Judges the calls that the guards before it let pass. */
  judge(calls: readonly ToolCall[], session: Session, thread: Thread, judged: Judged): Finding
}

/** Returns how the loop guard ends the run of a request. */
function endInLoop({ budget }: Request, loop: NonNullable<GuardEnd['loop']>, tool: string): GuardEnd {
  return { guard: 'loop_guard', askText: budget.texts.stopInLoop, fallback: fallbackText(tool, loop.count), loop }
}

const STOP_AT_AGENTS = `You've reached the limit on agents of this session. ${ANSWER_NOW}`
const DO_IT_YOURSELF = 'Do not retry. Do this part yourself with your tools'

function limitsAgents({ enabled, agents }: BudgetPolicy): boolean {
  return enabled && agents.total + agents.concurrent + agents.depth > 0
}

/**
 * Returns the limit of the tree that a call of so many agents exceeds, with what the model reads; `undefined`: none.
 */
function spawnProblem({ agents }: BudgetPolicy, depth: number, total: number, running: number, count: number) {
  const runs = (used: number, max: number) => `[GOVERNOR] This session already runs ${used} of ${max} agents.`
  if (agents.depth > 0 && depth >= agents.depth) {
    const text = `[GOVERNOR] Agents may stand ${agents.depth} deep, and this one does. ${DO_IT_YOURSELF}.`
    return { guard: 'max_depth', text } as const
  }
  if (agents.total > 0 && total + count > agents.total)
    return { guard: 'max_agents', text: `${runs(total, agents.total)} ${DO_IT_YOURSELF}.` } as const
  if (agents.concurrent > 0 && running + count > agents.concurrent) {
    const text = `${runs(running, agents.concurrent)} ${DO_IT_YOURSELF}, or wait for one to finish.`
    return { guard: 'max_concurrent_agents', text } as const
  }
  return undefined
}

/** The guards; of several that block one call the first counts. */
export const GUARDS: readonly CallGuard[] = [
  {
    name: 'loop_guard',
    onRefusedAgain: 'end',
    mayBlock({ loop, now }, { thread, loopMode }) {
      return loop.enabled && !!thread.loopState && mayBlock(thread.loopState.memory, inMode(loop, loopMode), now)
    },
    endOf(request, { thread: { loopState }, loopMode }) {
      const { loop } = request
      const found = loop.enabled && loopState ? endingLoop(loopState.memory, inMode(loop, loopMode)) : undefined
      return found && endInLoop(request, found, found.tool)
    },
    judge(calls, _session, { loopState }, { request, runState, isAgain, now }) {
      const { loop, facts } = request
      if (!loop.enabled || !loopState) return { blocked: [] }
      const policy = inMode(loop, runState.loopMode)
      const { memory, blocked, endsRun } = blockCalls(loopState.memory, calls, policy, facts.fingerprint, isAgain, now)
      const blocks = blocked.map((found) => {
        if (!found) return undefined
        const { tool, count } = found
        return { ...endInLoop(request, found, tool), tool, text: blockText(tool, count) }
      })
      return { blocked: blocks, endsRun, inThread: { loopState: { ...loopState, memory } } }
    },
  },
  {
    // Its blocks have the reason that is true: total, at once, or depth.
    name: 'max_agents',
    onRefusedAgain: 'pass',
    mayBlock: ({ budget }) => limitsAgents(budget),
    endOf: () => undefined,
    judge(calls, session, { depth = 0, run }, { request: { budget, facts }, now }) {
      if (!limitsAgents(budget)) return { blocked: [] }
      // A request that is sent again gets other calls in the place of the same.
      const sent = retryOf(run, facts)
      const before = sent?.spawned
      const others = withoutSpawned(session.guards?.max_agents, before)
      const { total, running } = agentsIn({ ...session, guards: { max_agents: others } }, now)
      let spawned = 0
      const blocked = calls.map(({ name: tool, arguments: given }): Block | undefined => {
        if (!matchesAny(budget.spawnTools, tool)) return undefined
        const count = spawnedBy(given)
        const problem = spawnProblem(budget, depth, total + spawned, running + spawned, count)
        if (problem) return { ...problem, tool, askText: STOP_AT_AGENTS, fallback: '(Stopped: no more agents)' }
        spawned += count
        return undefined
      })
      if (spawned === 0 && !before) return { blocked }
      const started = { count: spawned, second: Math.floor(now / 1_000) }
      const recentRequests = sent ? withRecent(run, sent, { spawned: started }) : run.recentRequests
      const inThread = { run: { ...run, recentRequests } }
      return { blocked, memory: withSpawned(others, started, now), inThread }
    },
  },
]

/** True if a run ends once the model has made a blocked call again. */
export function endsIfRefusedAgain({ guard }: Block): boolean {
  return GUARDS.some(({ name, onRefusedAgain }) => name === guard && onRefusedAgain === 'end')
}

/** True if a guard may block a call of the response that ends the run where the model makes it again and again. */
export function mayBlockLoop(request: Request, runState: RunState): boolean {
  return GUARDS.some((guard) => guard.onRefusedAgain === 'end' && guard.mayBlock(request, runState))
}

/** Asks all guards about the calls of a response; a guard that fails blocks none. */
export function judgeCalls(
  session: Session,
  counted: CountedRequest,
  calls: readonly ToolCall[],
  judged: Judged,
): Changed<Judgement> {
  let after = session
  const blocked = new Array<Block | undefined>(calls.length).fill(undefined)
  const faults: Judgement['faults'][number][] = []
  let end: Block | undefined
  for (const guard of GUARDS) {
    const thread = threadOf(after, counted)
    if (!thread) return { session, result: NOTHING_BLOCKED }
    const { name } = guard
    const passing = [...calls.entries()].filter(([at]) => !blocked[at])
    try {
      const found = guard.judge(
        passing.map(([, call]) => call),
        after,
        thread,
        judged,
      )
      after = withThread(after, thread, found.inThread ?? {})
      if (found.memory) after = { ...after, guards: { ...after.guards, [name]: found.memory } }
      if (found.endsRun) end ??= found.blocked.find((block) => block !== undefined)
      for (const [nth, [at]] of passing.entries()) blocked[at] = found.blocked[nth]
    } catch (error) {
      faults.push({ guard: name, error: errorOf(error) })
    }
  }
  // If all calls are blocked, the model is asked again and told why; else the next request carries a notice.
  const texts = new Set<string>()
  for (const block of blocked) if (block) texts.add(block.text)
  const thread = threadOf(after, counted)
  if (thread && texts.size > 0 && blocked.includes(undefined))
    after = withThread(after, thread, { blockNotice: { text: [...texts].join('\n\n') } })
  return { session: after, result: { blocked, end, faults } }
}
