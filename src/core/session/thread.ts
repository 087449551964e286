/**
 * Finds the thread of a session that a request continues.
 *
 * The strongest fact is what Governor relayed: the newest answer of a transcript shows call ids that the provider drew
 * for an answer of the thread, however the history before it was cut. Where there are no such ids, only this counts:
 * the transcript shows the newest answer that the thread's requests have shown, and the thread's user messages before
 * all others. Agents that run side by side may share a prompt, examples in it, a history, and even the words of
 * answers. In doubt a request begins a thread of its own, which is counted by its transcript.
 */
import { MAX_ASSISTANT_MESSAGES } from '../conversation/transcript.ts'
import type { Hash } from '../hash.ts'
import { callsLast, type RequestFacts } from './request-facts.ts'
import { isOfRun, MAX_THREADS, type RelayedAnswer, retryOf, type Session, type Thread } from './session.ts'

/** Milliseconds without requests after which a transcript without known answers continues no thread. */
const IDLE_MS = 600_000

/** How a request continues a thread; what is unset is not so, or not shown. */
export interface Continuation {
  readonly thread: Thread
  /** It begins another run, with a user message that the thread has not shown. */
  readonly isNewRun?: boolean
  /** The conversation begins again from its prompt. */
  readonly dropsHistory?: boolean
  /** The user message that begins the run stands before all answers: those are of the runs before it. */
  readonly asksBefore?: boolean
  /** It kept the answer to the thread's last message and dropped the message: the harness wrote it; the run goes on. */
  readonly dropsMessage?: boolean
  /** It shows or names an answer of the thread's run, or repeats a request that does; unset for a named thread. */
  readonly showsRun?: boolean
  /** The newest relayed answer that it shows. */
  readonly answer?: RelayedAnswer | undefined
  /** The thread has gone on from that answer already. `rewind`: the agent went back; `fork`: it is another agent. */
  readonly branch?: 'rewind' | 'fork'
  /** The user message at its end began the thread's run, after that answer. */
  readonly asksAgain?: boolean
  /** It shows several answers that Governor did not relay to the thread. */
  readonly showsMore?: boolean
  /** It has this number in its run, or a higher one: answers that it shows came from other replicas. */
  readonly least?: number | undefined
  /** It shows no other answers than the request before: a step in other bytes, of an answer that is not identified. */
  readonly repeatsStep?: boolean | undefined
  /** How many answers the transcript shows after the newest one of the thread, which may say the same. */
  readonly newer?: number | undefined
  /** How many answers with calls it shows although their iterations were taken back: they were executed. */
  readonly cutSteps?: number
}

/** The best kind is the first. */
const KINDS = ['whole', 'lost_beginning', 'dropped_message', 'summary'] as const

interface Fit {
  readonly thread: Thread
  /** See `fitOf`. */
  readonly kind: (typeof KINDS)[number]
  /** How many answers it shows after the thread's newest one; all of them if the thread has shown none. */
  readonly newer: number
  /** How many user messages it shows after those of the thread. */
  readonly users: number
}

/**
 * Returns how a request continues a thread; `undefined` if it begins one. The cases stand in the order of
 * docs/threads.md: the first that applies counts.
 */
export function findThread(session: Session, facts: RequestFacts, name: string, now: number): Continuation | undefined {
  const threads = session.threads.filter((thread) => thread.name === name)
  if (name !== '') {
    const named = threads.at(-1)
    return named && !forks(named, facts) ? continuationIn(named, facts, now) : undefined
  }
  const sender = threads.findLast(({ run }) => retryOf(run, facts))
  if (sender) return { thread: sender, showsRun: !facts.isPrompt }
  const { previous, system, userMessageHashes } = facts
  if (previous !== undefined) {
    const linked = threads.findLast(({ responses }) => responses?.includes(previous))
    const thread = linked ?? newestOfOne(threads.filter((one) => one.system === system))
    if (!thread || forks(thread, facts)) return undefined
    return { thread, isNewRun: userMessageHashes.length > 0, showsRun: linked !== undefined }
  }
  const shown = shownAnswer(threads, facts)
  if (shown && (shown.isNewest || isNextOf(shown))) return branchAfter(shown, facts)
  let best: Fit | undefined
  const isOfOne = threads.some((thread) => thread.system === system)
  for (const thread of threads) {
    const isOfOther = isOfOne && thread.system !== system && !thread.changesSystem
    const fit = isOfOther ? undefined : fitOf(thread, facts)
    if (fit && (!best || isBetter(fit, best))) best = fit
  }
  if (best) return continuationBy(best, facts)
  if (shown) return branchAfter(shown, facts)
  const placed = threads.filter((thread) => thread.placed !== undefined)
  const places = placed.length > 0 ? [facts.placed(1), facts.placed(2)] : []
  const [only, another] = placed.flatMap((thread) => placedFit(thread, places, facts) ?? [])
  if (only && !another) return continuationBy(only, facts)
  const thread = compactedThread(threads, facts, now)
  // A harness asks for the summary with a message that is not seen again.
  const last = thread?.userMessageHashes.at(-1)
  const dropsMessage = last !== undefined && !userMessageHashes.includes(last)
  return thread && { thread, dropsMessage }
}

/**
 * A relayed answer in a transcript. `isNewest`: no answer after it has ids that could identify it; `isLast`: there is
 * no answer after it.
 */
interface ShownAnswer {
  readonly thread: Thread
  readonly answer: RelayedAnswer
  /** The index of the message that shows it, among the assistant messages. */
  readonly at: number
  readonly isNewest: boolean
  readonly isLast: boolean
}

/**
 * Returns the newest answer in a transcript that was relayed to one of the threads; `undefined` if that is in doubt.
 */
function shownAnswer(
  threads: readonly Thread[],
  { callIds, transcript, messages }: RequestFacts,
): ShownAnswer | undefined {
  let isNewest = true
  for (let at = callIds.length - 1; at >= 0; at--) {
    const ids = callIds[at] ?? []
    if (ids.length === 0) continue
    // An answer at the end that a client gives back stands after it too.
    const isLast = at === callIds.length - 1 && transcript.length === messages
    let known: Map<Hash, ShownAnswer | undefined> | undefined
    // An id that came in several answers identifies none of them.
    for (const thread of threads)
      for (const answer of thread.relayed ?? [])
        for (const id of answer.callIds) {
          if (!ids.includes(id)) continue
          known ??= new Map()
          known.set(id, known.has(id) ? undefined : { thread, answer, at, isNewest, isLast })
        }
    let found: ShownAnswer | undefined
    // A client may join the calls of several answers into one message: the newest of them is the last.
    for (const one of known?.values() ?? []) {
      if (!one || (found && found.thread !== one.thread)) return undefined
      found = one
    }
    if (found) return found
    isNewest = false
  }
  return undefined
}

/**
 * Returns whether a transcript shows the newest answer of the thread too, so far after the one that has ids that those
 * between them are not read: an agent that ignores the last answer of its stopped run repeats it.
 */
function showsNewestToo({ thread: { newest }, at }: ShownAnswer, { assistantHashes }: RequestFacts): boolean {
  const isFarBack = at === 0 && assistantHashes.length > MAX_ASSISTANT_MESSAGES
  return isFarBack && newest !== undefined && assistantHashes.lastIndexOf(newest) > 0
}

/**
 * Returns whether a thread has not gone on from an answer yet: no request after the one that it belongs to was answered
 * or is in flight; or only with words, or to the end of its run.
 */
function isNextOf({ thread: { run, relayed }, answer, isLast }: ShownAnswer): boolean {
  if (relayed?.at(-1) === answer && (!isLast || run.finalAnswer)) return true
  if (run.finalAnswer && answer.iteration >= (run.finalAnswer.ended?.counts.iterations ?? 0)) return true
  const at = run.recentRequests.findLastIndex(({ fingerprint }) => fingerprint === answer.fingerprint)
  return run.recentRequests.slice(at + 1).every(({ outcome }) => outcome === 'released')
}

/**
 * Returns how many iterations of a run are taken back although a transcript shows the whole answer: the same bytes were
 * sent twice at once, and the other sending failed.
 */
function takenBack({ run, branch }: Thread, { fingerprint, iteration, isCut }: RelayedAnswer): number {
  // Of a branch, iterations are taken back that its agent has not made.
  if (isCut || branch || run.finalAnswer || !retryOf(run, { fingerprint })) return 0
  return Math.max(0, iteration - (run.counts.iterations ?? 0))
}

/**
 * Returns how many answers a transcript shows after the one with an index. Between its first answer and its newest ones
 * there may be others, which are not read.
 */
function answersAfter(at: number, { assistantHashes, iteration, transcript }: RequestFacts): number {
  const read = assistantHashes.length - 1 - at
  if (at > 0 || assistantHashes.length <= MAX_ASSISTANT_MESSAGES) return read
  const [first] = transcript.assistantMessages
  const opener = transcript.openers.at(-1)?.step
  const isOfRun = first?.index === opener?.index
  return Math.max(read, isOfRun ? iteration - 2 : iteration - 1)
}

/** Returns how a transcript continues the thread of an answer that it shows. */
function continuationAfter({ thread, answer, at, isNewest }: ShownAnswer, facts: RequestFacts): Continuation {
  const { userMessageHashes: shown, assistantHashes, iteration } = facts
  const { userMessageHashes: known, newest, endsInUserMessage } = thread
  const last = known.at(-1)
  const isAfterUser = endsInUserMessage === true && last !== undefined && newest !== undefined
  // The answer to the message stands after the answers that stood before it.
  const before = isAfterUser ? assistantHashes.lastIndexOf(newest) : -1
  const isAnswered = before >= 0 && before < assistantHashes.length - 1
  const dropsMessage = isAfterUser && isAnswered && !shown.includes(last)
  const isSameMessage = isAfterUser && last === shown.at(-1) && newest === assistantHashes.at(-1)
  const isOver = dropsMessage && callsLast(facts)
  const newer = answersAfter(at, facts)
  // The words after all answers are new, and those after this one before answers that came elsewhere.
  const isAfterAnswer = iteration === 1 || (!isNewest && newer >= iteration - 1)
  const asksBefore = !isAfterAnswer && asksInPlace(thread, facts)
  const isNewRun = asksBefore || (isAfterAnswer && shown.length > 0 && !isSameMessage && !isOver)
  // While a store fails, other replicas relay answers that this one does not know; a harness writes one at most.
  const showsMore = !isNewest && newer > (thread.run.isDoubted ? 0 : 1)
  const least = !isNewest && thread.run.mayLack ? answer.iteration + newer + 1 : undefined
  const cutSteps = cutStepsIn(thread, facts, answer.isCut ? at - 1 : at) + takenBack(thread, answer)
  const asksAgain = isAfterAnswer && isSameMessage && !isOfRun(answer, thread.run)
  return { thread, answer, isNewRun, asksBefore, asksAgain, dropsMessage, showsRun: true, showsMore, least, cutSteps }
}

/**
 * Returns whether a transcript asks something new after the words that ended the thread's run, although it ends in
 * those: some frameworks put each question in the place of the first one, before all answers.
 */
function asksInPlace(thread: Thread, facts: RequestFacts): boolean {
  const { run, changesQuestion } = thread
  if (changesQuestion || !replacesQuestion(thread, facts)) return false
  const endsInWords = facts.transcript.length < facts.messages || (!facts.endsInUserMessage && !callsLast(facts))
  return endsInWords && (run.isAnswered === true || run.finalAnswer !== undefined)
}

/** Returns whether the words before the newest answers of a transcript are others than those that a thread knows. */
export function replacesQuestion({ userMessageHashes: known }: Thread, facts: RequestFacts): boolean {
  const question = facts.userMessageHashes.at(-1)
  return question !== undefined && facts.iteration > 1 && !known.includes(question)
}

/** Returns whether other replicas may have relayed answers to a thread that it does not know. */
function mayBeBehind({ run }: Thread): boolean {
  return run.isDoubted === true || run.mayLack === true
}

/** Returns whether the newest request of a thread got no whole answer. */
function isReleased({ run }: Thread): boolean {
  return run.recentRequests.at(-1)?.outcome === 'released'
}

/**
 * Returns how many answers that broke off were executed: a transcript shows them with calls. `whole`: the index of the
 * newest answer that is known to be whole.
 */
function cutStepsIn(thread: Thread, { assistantHashes, callCounts }: RequestFacts, whole = -1): number {
  if (!isReleased(thread) || thread.run.finalAnswer) return 0
  const { newest } = thread
  const at = newest === undefined ? -1 : assistantHashes.lastIndexOf(newest)
  // Of a history that was cut, the newest answer alone is new.
  const known = newest !== undefined && at === -1 ? assistantHashes.length - 2 : at
  return callCounts.slice(Math.max(known, whole) + 1).filter((calls) => calls > 0).length
}

/** Returns the same, where several agents may go on from one answer; `undefined` if it begins a thread and a run. */
function branchAfter(shown: ShownAnswer, facts: RequestFacts): Continuation | undefined {
  const found = continuationAfter(shown, facts)
  if (found.asksBefore || isNextOf(shown)) return found
  if (showsNewestToo(shown, facts)) return { ...found, answer: undefined }
  const { isFirst, isFollowed } = shown.answer
  const isInFlight = shown.thread.run.recentRequests.at(-1)?.outcome === undefined
  const isFork = (isFirst && !isFollowed) || isInFlight
  if (found.isNewRun) return undefined
  return { ...found, branch: isFork ? 'fork' : 'rewind' }
}

/**
 * Returns whether a request begins a conversation of its own: with a user message it continues from a response that
 * the thread has continued from already. Without one, an agent that goes back does not get its budget back.
 */
function forks({ continuedFrom, run }: Thread, facts: RequestFacts): boolean {
  const { previous, isAppended, userMessageHashes } = facts
  if (previous === undefined || isAppended || userMessageHashes.length === 0) return false
  return continuedFrom?.includes(previous) === true && !retryOf(run, facts)
}

/**
 * Returns how a transcript fits a thread; `undefined` if it does not. It shows the thread's newest answer, or the
 * thread has none. Kinds:
 * - `whole`: its user messages begin with those of the thread;
 * - `lost_beginning`: they begin with the newest of those, perhaps after its first: the history lost what came before;
 * - `dropped_message`: they lack its last one, but the answer to that is there, or it got none: the harness wrote that
 *   message for one request;
 * - `summary`: it got shorter, and all new user messages stand before the answer: they are a summary.
 */
function fitOf(thread: Thread, facts: RequestFacts): Fit | undefined {
  // A transcript does not show the ids by which a thread has continued from answers that the provider keeps.
  const newest = thread.continuedFrom ? undefined : thread.newest
  const { assistantHashes, iteration } = facts
  const newer = newest === undefined ? assistantHashes.length : newerThan(thread, facts)
  if (newer === undefined) return undefined
  const at = assistantHashes.length - 1 - newer
  const known = thread.userMessageHashes
  const shown = facts.userMessageHashes
  // A system text that changes with each request states the time.
  const mayBeOther = at === -1 ? !thread.changesSystem : assistantHashes.length < 2
  if (thread.system !== facts.system && mayBeOther) return undefined
  if (beginsWith(shown, known, thread.userMessageCount)) {
    const users = shown.length - thread.userMessageCount
    // A summary alone says nothing about the conversations of others.
    if (at === -1 && known.length === 0 && users > 0) return undefined
    // Nothing but the same prompt: another agent has got the same task.
    return newer === 0 && users === 0 && iteration === 1 ? undefined : { thread, kind: 'whole', newer, users }
  }
  const mayDrop = (newer > 0 || isReleased(thread)) && (at >= 0 || thread.userMessageCount > 1)
  if (mayDrop && dropsLast(thread, facts)) return { thread, kind: 'dropped_message', newer, users: 0 }
  if (thread.system !== facts.system || at === -1) return undefined
  const users = usersAfterCut(shown, known)
  if (users !== undefined) return { thread, kind: 'lost_beginning', newer, users }
  const isShorter = facts.messages < (thread.messages ?? 0) && iteration <= (thread.run.counts.iterations ?? 0)
  // Equal answers in another run of the thread: an older view of the history ends there.
  const isOfOlderRun = newer === 0 && known.slice(0, -1).includes(shown.at(-1) as Hash)
  return isShorter && newer < iteration - 1 && !isOfOlderRun ? { thread, kind: 'summary', newer, users: 0 } : undefined
}

/**
 * Returns how a transcript fits a thread whose client writes new ids for all calls with each request: at the place of
 * the thread's newest answer it shows one with the same words and calls, and one more after it at most. `places`: what
 * its last two answers are by their places.
 */
function placedFit(thread: Thread, places: readonly (Hash | undefined)[], facts: RequestFacts): Fit | undefined {
  const { placed, userMessageHashes: known, userMessageCount } = thread
  const newer = places.indexOf(placed)
  // Agents with the same prompt may say and call the same.
  if (newer < 0 || thread.isPromptRepeated || thread.system !== facts.system) return undefined
  const shown = facts.userMessageHashes
  if (beginsWith(shown, known, userMessageCount))
    return { thread, kind: 'whole', newer, users: shown.length - userMessageCount }
  return newer > 0 && dropsLast(thread, facts) ? { thread, kind: 'dropped_message', newer, users: 0 } : undefined
}

/** Returns whether a transcript shows all user messages of a thread but the last one, and perhaps one at its end. */
function dropsLast({ endsInUserMessage, userMessageHashes: known, userMessageCount }: Thread, facts: RequestFacts) {
  const shown = facts.userMessageHashes
  const kept = facts.endsInUserMessage ? shown.slice(0, -1) : shown
  return endsInUserMessage && kept.length === userMessageCount - 1 && beginsWith(kept, known.slice(0, -1), kept.length)
}

/**
 * Returns whether the last answer of a transcript says and calls the same as the one before it, which the thread knows:
 * it is a new one, unless the request before it got no answer, or the agent went back.
 */
function repeatsAnswer(thread: Thread, { assistantHashes, messages }: RequestFacts): boolean {
  const [before, last] = assistantHashes.slice(-2)
  if (before !== last || before !== thread.newest) return false
  return messages >= (thread.messages ?? 0) && !isReleased(thread)
}

/** Returns how many answers follow the newest one of a thread in a transcript; `undefined` if it does not show that. */
function newerThan(thread: Thread, facts: RequestFacts): number | undefined {
  const { assistantHashes } = facts
  const last = thread.newest === undefined ? -1 : assistantHashes.lastIndexOf(thread.newest)
  if (last === -1) return undefined
  return assistantHashes.length - 1 - last + Number(last > 0 && repeatsAnswer(thread, facts))
}

/** Returns whether `shown` begins with `count` user messages that end with `known`. */
function beginsWith(shown: readonly Hash[], known: readonly Hash[], count: number): boolean {
  const from = count - known.length
  for (let at = 0; at < known.length; at++) if (known[at] !== shown[from + at]) return false
  return true
}

/**
 * Returns how many user messages follow those of `known`; `undefined` if `shown` begins with none of them. Of a history
 * that kept its prompt, the part after that must begin with some.
 */
function usersAfterCut(shown: readonly Hash[], known: readonly Hash[]): number | undefined {
  if (shown.length === 0) return 0
  const prompt = known.findIndex((hash, at) => hash !== shown[at])
  for (const rest of [shown, shown.slice(Math.max(0, prompt))])
    for (let kept = Math.min(known.length, rest.length); kept > 0; kept--)
      if (beginsWith(rest, known.slice(-kept), kept)) return rest.length - kept
  return undefined
}

/** Threads that know the most of a transcript fit best; of equal ones the one that has waited longest. */
function isBetter(one: Fit, other: Fit): boolean {
  if (one.kind !== other.kind) return KINDS.indexOf(one.kind) < KINDS.indexOf(other.kind)
  if (one.newer !== other.newer) return one.newer !== 0 && (other.newer === 0 || one.newer < other.newer)
  return one.thread.userMessageCount > other.thread.userMessageCount
}

function continuationBy({ thread, kind, newer, users }: Fit, facts: RequestFacts): Continuation {
  const dropsMessage = kind === 'dropped_message'
  // After an answer without calls the message at the end is a human's, whatever became of the one before.
  const speaksAtEnd = dropsMessage && facts.endsInUserMessage && !callsLast(facts)
  // A user message before an answer that the run knows was put there by the harness.
  const isAfterNewest = newer >= facts.iteration - 1
  return {
    thread,
    isNewRun: speaksAtEnd || (users > 0 && isAfterNewest),
    dropsMessage,
    showsRun: dropsMessage || !isAfterNewest,
    // Answers that broke off may be shown too.
    showsMore: newer > 1 && (!isReleased(thread) || mayBeBehind(thread)),
    newer,
    repeatsStep: newer === 0 && thread.messages === facts.messages && !isReleased(thread),
    cutSteps: cutStepsIn(thread, facts),
  }
}

/** Returns how a request continues the thread that its client names, whatever its transcript shows. */
function continuationIn(thread: Thread, facts: RequestFacts, now: number): Continuation {
  const { previous, userMessageHashes } = facts
  const last = userMessageHashes.at(-1)
  if (retryOf(thread.run, facts)) return { thread }
  // A user message beside a history that the provider keeps is new.
  if (previous !== undefined) return { thread, isNewRun: last !== undefined }
  if (facts.isPrompt && thread.newest !== undefined) return { thread, isNewRun: true, dropsHistory: true }
  const { run, newest, userMessageHashes: known } = thread
  const asked = thread.endsInUserMessage && newest !== undefined ? known.at(-1) : undefined
  // What was said after an answer is gone: the harness asked for a summary, or stated something.
  const isGone = asked !== undefined && !userMessageHashes.includes(asked)
  const shown = shownAnswer([thread], facts)
  if (shown) {
    const found = continuationAfter(shown, facts)
    return isGone && !found.isNewRun && !isOfRun(shown.answer, run) ? { ...found, dropsMessage: true } : found
  }
  const fit = fitOf(thread, facts)
  if (fit) return continuationBy(fit, facts)
  // Other replicas may have relayed all that it shows.
  const showsMore = mayBeBehind(thread)
  const isOver = run.isAnswered === true || run.finalAnswer !== undefined
  const isAfterWords = isOver && !callsLast(facts)
  const speaksAfterEnd = isAfterWords && facts.endsInUserMessage
  // Between steps, new words before the newest answer are a harness's: a summary, or the state of the work.
  const newer = newerThan(thread, facts)
  const isBefore = newer !== undefined && newer < facts.iteration - 1
  const maySpeak = !(isGone && callsLast(facts)) && (isAfterWords || showsMore || !isBefore)
  const speaks = speaksAfterEnd || (maySpeak && last !== undefined && !known.includes(last))
  const isNewRun = speaks && !compactedThread([thread], facts, now)
  return { thread, isNewRun, dropsMessage: isGone, showsMore, newer, cutSteps: cutStepsIn(thread, facts) }
}

/**
 * Returns the thread whose history was compacted into a transcript that shows none of its answers, and no other user
 * message than the thread. It is one of these:
 * - a summary: no answer calls a tool, and something stands beside the user messages;
 * - the newest step alone, which is not known yet, if no agent with the same prompt may have made it. Only a run that
 *   goes on is compacted. `undefined` also where such threads belong to several conversations.
 */
function compactedThread(threads: readonly Thread[], facts: RequestFacts, now: number): Thread | undefined {
  const { system, userMessageHashes: shown, assistantHashes, callCounts, isPrompt, isCompacted, messages } = facts
  const { promptLength: length = messages } = facts
  // After an answer a user speaks.
  if (callCounts.length > 0 && facts.endsInUserMessage) return undefined
  const isStep = callCounts.some((calls) => calls > 0)
  if (isStep && !isCompacted) {
    // Another agent may show its first step: with the same prompt, or in a forgotten thread.
    if (shown.length === 0 || threads.length >= MAX_THREADS) return undefined
    for (const { isPromptRepeated, userMessageHashes } of threads)
      if (isPromptRepeated && userMessageHashes[0] === shown[0]) return undefined
  }
  const compacted: Thread[] = []
  let isSurmised = false
  for (const thread of threads) {
    const { run, first, userMessageHashes: known } = thread
    // A prompt that the thread knows stands for a system text that changes all the time.
    const mayDiffer = thread.changesSystem && !isStep && shown.length > 0
    if ((thread.system !== system && !mayDiffer) || first === undefined) continue
    if (!shown.every((hash) => known.includes(hash))) continue
    // A prompt may hold messages of the harness too.
    const promptLength = thread.promptLength ?? (isPrompt ? length : 0)
    // What is said between results and the next answer may ask for the summary.
    const isAnswered = run.isAnswered && !run.finalAnswer && !thread.midSteps
    const isOver = isAnswered || now - run.askedAt >= IDLE_MS
    const isSummary = !isStep && (shown.length === 0 || length > promptLength)
    const isShorter = messages < (thread.messages ?? 0) && facts.iteration <= (run.counts.iterations ?? 0)
    // A client that goes back shows the first answer; one that gives calls new ids shows none that is known.
    const isNewestStep = isStep && isShorter && !thread.placed && !assistantHashes.includes(first)
    if (!isCompacted && (isOver || !(isSummary || isNewestStep))) continue
    compacted.push(thread)
    isSurmised ||= thread.system !== system || length > messages
  }
  // Agents with the same prompt may begin with a summary too.
  const isOfOneAgent = compacted.length === 1 && !compacted[0]?.isPromptRepeated
  return isSurmised && !isOfOneAgent ? undefined : newestOfOne(compacted)
}

/** Returns the newest of several threads, if all of them belong to one conversation. */
function newestOfOne(threads: readonly Thread[]): Thread | undefined {
  const newest = threads.at(-1)
  return threads.every(({ first }) => first === newest?.first) ? newest : undefined
}
