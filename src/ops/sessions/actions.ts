/** What operators do to sessions, one row each: the routes, the log and the OpenAPI description are made of these. */
import type * as z from 'zod'
import { LIMITS, METERS } from '../../core/budget/meters.ts'
import { hashOf } from '../../core/hash.ts'
import {
  type BudgetChange,
  type Extension,
  extendRuns,
  resetRuns,
  setBudget,
  setLoopMode,
  stopRuns,
} from '../../core/operator/operator.ts'
import type { Session } from '../../core/session/session.ts'
import type { OperatorAction } from '../../telemetry/event.ts'
import { problem } from '../problem.ts'
import { budgetBody, extendBody, loopGuardBody, type ThreadBody, threadBody } from './api-schema.ts'

/** What an action depends on besides the session and its body. */
export interface ActionContext {
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** True if the loop guard is off for every request. */
  readonly isLoopGuardOff: () => boolean
  /** A request that comes again with the same key changes nothing a second time. */
  readonly idempotencyKey: string | undefined
}

/** An action of an operator. Its body is logged: it holds numbers and words of closed sets. */
export interface Action<Body extends ThreadBody = ThreadBody> {
  readonly name: OperatorAction
  readonly method: 'POST' | 'PATCH'
  readonly summary: string
  readonly body: z.ZodType<Body>
  /** Returns the session after it; throws if the action is not possible. */
  change(before: Session, body: Body, context: ActionContext): Session
}

const action = <Body extends ThreadBody>(row: Action<Body>): Action => row

/** The actions, by the last part of their paths. */
export const ACTIONS: Readonly<Record<string, Action>> = {
  stop: action({
    name: 'stop',
    method: 'POST',
    summary: 'End current runs with an answer',
    body: threadBody,
    change: (before, { thread }) => stopRuns(before, thread),
  }),
  reset: action({
    name: 'reset',
    method: 'POST',
    summary: 'Begin current runs anew',
    body: threadBody,
    change: (before, { thread }, { now }) => resetRuns(before, thread, now()),
  }),
  extend: action({
    name: 'extend',
    method: 'POST',
    summary: 'Raise the limits of current runs',
    body: extendBody,
    change(before, body, { idempotencyKey: key }) {
      let by: Extension
      if ('to' in body) by = { to: body.to }
      else if (typeof body.by === 'number') by = { iterations: body.by }
      else by = { share: Number.parseFloat(body.by) / 100 }
      return extendRuns(before, body.thread, by, key === undefined ? undefined : hashOf(key))
    },
  }),
  budget: action({
    name: 'budget',
    method: 'PATCH',
    summary: 'Set limits of runs',
    body: budgetBody,
    change(before, { thread, ...limits }) {
      const change: BudgetChange = {}
      for (const name of LIMITS) change[name] = limits[METERS[name].limit.setting]
      return setBudget(before, thread, change)
    },
  }),
  'loop-guard': action({
    name: 'loop_guard',
    method: 'PATCH',
    summary: 'Set what happens in a loop',
    body: loopGuardBody,
    change(before, { thread, mode }, { isLoopGuardOff }) {
      if (mode !== null && isLoopGuardOff()) throw problem('loop_guard_off')
      return setLoopMode(before, thread, mode)
    },
  }),
}
