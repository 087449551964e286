/** The tree of agents of a session: how deep each is, how many there were, and how many run. */
import { type Json, parseObject } from '../json-object.ts'
import type { Request } from '../request.ts'
import { lastTime, QUIET_MS, terminalIn } from './run.ts'
import type { GuardMemory, RecentRequest, Run, Session, Thread } from './session.ts'

/** Milliseconds for which an agent that was started counts as running although it has asked for nothing yet. */
const UNSEEN_MS = 60_000

/** Returns the depth of the agent whose thread a request begins: 1 below the main one; `undefined` for the main one. */
function depthOf({ threads }: Session, { thread: name, parent }: Request): number | undefined {
  if (parent !== undefined) return (threads.findLast((one) => one.name === parent)?.depth ?? 0) + 1
  // After a restart the agents of a client that names them may come before the main one, which has no name.
  const isMain = name === '' ? threads.every((one) => one.name !== '') : threads.length === 0
  return isMain ? undefined : 1
}

/**
 * Returns the depth of a request's agent, and what guards remember after it: one more agent if it is new. `known`: its
 * thread; `isBranch`: it goes on from an older answer of a thread; `sibling`: the thread that had its first answer.
 */
export function inTree(
  session: Session,
  request: Request,
  known: Thread | undefined,
  isBranch: boolean,
  sibling: Thread | undefined,
): { readonly depth: number | undefined; readonly guards: Session['guards'] } {
  const { guards } = session
  if (known || isBranch) return { depth: known?.depth, guards }
  const depth = sibling ? sibling.depth : depthOf(session, request)
  if (depth === undefined) return { depth, guards }
  const memory = guards?.max_agents ?? {}
  // It is the first of those that are waited for.
  const [key, count = 0] = awaitedIn(memory, request.now).find(([, unseen]) => unseen > 0) ?? []
  const waited = key === undefined ? {} : { [key]: count - 1 }
  return { depth, guards: { ...guards, max_agents: { ...memory, ...waited, seen: (memory['seen'] ?? 0) + 1 } } }
}

const SPAWNED_AT = 'at '

/** Returns the memory with agents that were started in a second: those of the last minute stand by the second. */
export function withSpawned(memory: GuardMemory, { count, second }: Spawned, now: number): GuardMemory {
  const kept = Object.entries(memory).filter(([key]) => !key.startsWith(SPAWNED_AT) || isRecent(key, now))
  const after = Object.fromEntries(kept)
  const at = `${SPAWNED_AT}${second}`
  after[at] = (after[at] ?? 0) + count
  after['spawned'] = (after['spawned'] ?? 0) + count
  return after
}

/** Returns the memory without agents whose calls the client did not get, as it has sent its request again. */
export function withoutSpawned(memory: GuardMemory = {}, spawned: Spawned | undefined): GuardMemory {
  if (!spawned) return memory
  const { count, second } = spawned
  const at = `${SPAWNED_AT}${second}`
  const { [at]: unseen = 0, spawned: all = 0 } = memory
  return { ...memory, [at]: Math.max(0, unseen - count), spawned: Math.max(0, all - count) }
}

type Spawned = NonNullable<RecentRequest['spawned']>

/** Returns the seconds of the last minute, as keys, with how many agents that were started in each are awaited. */
function awaitedIn(memory: GuardMemory, now: number): [key: string, count: number][] {
  return Object.entries(memory).filter(([key]) => key.startsWith(SPAWNED_AT) && isRecent(key, now))
}

function isRecent(key: string, now: number): boolean {
  return Number(key.slice(SPAWNED_AT.length)) * 1_000 > now - UNSEEN_MS - 1_000
}

/** Returns whether an agent runs: until it answers, Governor ends it, or it asks for nothing for five minutes. */
function runs(run: Run, now: number): boolean {
  if (run.isAnswered || terminalIn(run)) return false
  return run.recentRequests.at(-1)?.outcome === undefined || now - lastTime(run) < QUIET_MS
}

/** Returns how many agents a session has started or shown, without the main one, and how many of them run. */
export function agentsIn(
  { threads, guards }: Session,
  now: number,
): { readonly total: number; readonly running: number } {
  const memory = guards?.max_agents ?? {}
  const agents = threads.filter(({ depth = 0 }: Thread) => depth > 0)
  let unseen = 0
  for (const [, count] of awaitedIn(memory, now)) unseen += count
  const running = agents.filter(({ run }) => runs(run, now)).length + Math.max(0, unseen)
  return { total: Math.max(memory['seen'] ?? 0, memory['spawned'] ?? 0), running }
}

/** Lists of agents in the arguments of a call that starts several at once. */
const BATCHES = ['tasks', 'agents', 'subagents']

/** Returns how many agents a call starts. */
export function spawnedBy(argumentsText: string): number {
  const given: Json = parseObject(argumentsText) ?? {}
  let most = 1
  for (const name of BATCHES) {
    const batch = given[name]
    if (Array.isArray(batch)) most = Math.max(most, batch.length)
  }
  return most
}
