/**
 * The journal of usage: a file with a line of JSON for each finished run and each hour of a running one. A line says
 * what was used since the line before, so that the sum of all lines is what was used at all. It holds no text of a
 * conversation.
 */

import { access, constants, type FileHandle, mkdir, open, rename, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { dirname } from 'node:path'
import { type Named, withAmounts } from '../core/by-name.ts'
import {
  add,
  COUNTERS,
  type CounterName,
  type CounterRow,
  type Counts,
  costGapOf,
  countedWithRequests,
  countsOf,
  minus,
  NO_COUNTS,
  tokensIn,
} from '../core/counters.ts'
import { namesOf } from '../core/names.ts'
import { codeOf, errorOf, ignore } from '../core/thrown.ts'
import { tryLock } from '../store/shared-file.ts'
import type { Answered, Emit, ProxyEvent } from './event.ts'

/** Where `governor run` and `governor init` keep it. */
export const DEFAULT_JOURNAL = '~/.local/state/governor/usage.jsonl'

/** Bytes of a file from which a new one is begun, and how many older ones are kept. */
const MAX_BYTES = 8 * 1_048_576
export const OLDER_FILES = 4
/** The most characters that wait until they can be written. */
const MAX_LEFT = 1_048_576
/** The most runs whose line is not written yet. */
const MAX_OPEN = 10_000
const HOUR = 3_600_000
const MAX_NAME = 200

/** Returns what a line says of the run of an answer. */
function identityOf({ session, apiId, thread, depth = 0, client, key, model, upstream }: Answered) {
  return {
    /** The name that the client gave, and the id in the API; `null` before a conversation without a name has one. */
    session: session?.slice(0, MAX_NAME) ?? null,
    id: apiId ?? null,
    thread,
    /** How many agents stand above that of the thread. */
    depth,
    client: client ?? null,
    key: key ?? null,
    model: model.slice(0, MAX_NAME),
    upstream,
  }
}

type JournalName = Extract<(typeof COUNTERS)[CounterName], { readonly journal: string }>['journal']

/** Returns what a line says of counts: all amounts that the journal has, also those that are 0. */
function amountsOf(counts: Counts) {
  const amounts: Partial<Record<JournalName, number>> = {}
  for (const name of namesOf(COUNTERS)) {
    const { journal }: CounterRow & { readonly journal?: JournalName } = COUNTERS[name]
    if (journal) amounts[journal] = counts[name] ?? 0
  }
  /** False if the cost lacks calls without a known price, or estimates them. */
  return { ...amounts, price_known: costGapOf(counts) === undefined }
}

/** A line of the journal: what was used since the line before of the same run. */
export interface JournalLine extends Readonly<ReturnType<typeof identityOf> & Required<ReturnType<typeof amountsOf>>> {
  readonly time: string
  /** When the first answer came that it counts. */
  readonly since: string
  /** The input, and its cost, that results of tools took. */
  readonly tools: readonly { readonly tool: string; readonly input: number; readonly cost_usd: number }[]
  /** How the run ended; `null` while it goes on, or where it was left in the middle. */
  readonly end: string | null
}

interface JournalOptions {
  /** A path that begins with `~/` is in the home folder. */
  readonly path: string
  readonly now: () => number
  /** Calls back once after a delay in milliseconds; returns a function that cancels the call. */
  readonly after: (delay: number, call: () => void) => () => void
  readonly emit: Emit
}

/** Returns the path of the journal's file, or of an older one. */
export function journalFile(path: string, older = 0): string {
  const file = path.startsWith('~/') ? homedir() + path.slice(1) : path
  return older === 0 ? file : `${file}.${older}`
}

/** A lock of this age, in milliseconds, was left by a process that was killed. */
const MAX_LOCK_AGE = 60_000

/** Begins a new file if this one is large. One process at a time renames files; the others append to the old one. */
async function rotate(path: string): Promise<void> {
  const file = journalFile(path)
  const isLarge = async () => ((await stat(file).catch(ignore))?.size ?? 0) >= MAX_BYTES
  if (!(await isLarge())) return
  const unlock = await tryLock(file, MAX_LOCK_AGE).catch(ignore)
  if (!unlock) return
  // Another process may have begun a new file before this one had the lock.
  if (await isLarge())
    for (let older = OLDER_FILES; older > 0; older--)
      await rename(journalFile(path, older - 1), journalFile(path, older)).catch(ignore)
  await unlock()
}

const LINE_FEED = 0x0a

/** Returns whether `bytes`, which were appended to a file of at least `size` bytes, follow the beginning of a line. */
async function isGlued(file: FileHandle, size: number, bytes: Buffer): Promise<boolean> {
  const from = Math.max(0, size - 1)
  const length = Math.max(0, (await file.stat()).size - from)
  const { buffer } = await file.read(Buffer.alloc(length), 0, length, from)
  const at = buffer.indexOf(bytes)
  return at > 0 && buffer[at - 1] !== LINE_FEED && bytes[0] !== LINE_FEED
}

/** Appends lines. Returns those that are not written yet; `problem`: why, for people. */
async function append(path: string, text: string): Promise<{ readonly left: string; readonly problem?: string }> {
  const bytes = Buffer.from(text)
  let written = 0
  let file: FileHandle | undefined
  try {
    await mkdir(dirname(journalFile(path)), { recursive: true, mode: 0o700 })
    await rotate(path)
    file = await open(journalFile(path), 'a+', 0o600)
    const { size } = await file.stat()
    // One write, so that no line of another process comes between.
    written = (await file.write(bytes)).bytesWritten
    if (written < bytes.length) throw new Error(`ENOSPC: no space left on device, write '${journalFile(path)}'`)
    // A pipe can't be read again.
    if (!(await isGlued(file, size, bytes).catch(() => false))) return { left: '' }
  } catch (error) {
    const whole = bytes.subarray(0, written).lastIndexOf(LINE_FEED) + 1
    return { left: bytes.toString('utf8', whole), problem: errorOf(error).message }
  } finally {
    await file?.close()
  }
  // The disk was full in the middle of the line before: together they are no line.
  return append(path, `\n${text.slice(0, text.indexOf('\n') + 1)}`)
}

/** Returns why a journal can't be written, for people; `undefined` if it can. Creates nothing. */
export async function whyUnwritable(path: string): Promise<string | undefined> {
  const file = journalFile(path)
  for (let at = file; ; at = dirname(at))
    try {
      const isFolder = (await stat(at)).isDirectory()
      if (isFolder === (at === file)) return `${at} is ${isFolder ? 'a folder' : 'no folder'}`
      await access(at, constants.W_OK)
      return undefined
    } catch (error) {
      const code = codeOf(error)
      const isMissing = code === 'ENOENT' || code === 'ENOTDIR'
      if (!isMissing || at === dirname(at)) return `no permission to write ${at}`
    }
}

/** Returns the run of an answer; `before`: what is known of it, with another model. */
function begin(event: Answered, before: OpenRun | undefined): OpenRun {
  // Other processes have counted what came before; calls that no process saw are not counted.
  const counted = before?.counted ?? (event.iteration <= 2 ? NO_COUNTS : countedWithoutNew(event))
  const { iteration, skipped } = before ?? { iteration: 0, skipped: [] }
  return { of: identityOf(event), ...UNUSED, run: event.run, iteration, counted, skipped }
}

/** Returns what the requests of a run had counted before that of an answer showed its newest calls. */
function countedWithoutNew({ counts, newCalls = 0 }: Answered): Counts {
  return minus(countedWithRequests(counts), { tool_calls: newCalls })
}

/** Moves the first answer of a conversation, which came before it had an id, to the line of its run. */
function claimFirst(opening: OpenRun, run: OpenRun, { counts }: Answered): void {
  const first = { ...minus(counts, countedWithRequests(counts)), runs: 1, iterations: 1 }
  const left = minus(opening.used, first)
  run.used = minus(opening.used, left)
  run.since = opening.since
  opening.used = left
  if (tokensIn(left) === 0) opening.since = undefined
}

interface OpenRun {
  readonly of: ReturnType<typeof identityOf>
  /** Since the line before. Several runs without an id may share a line. */
  used: Counts
  tools: readonly Named<Counts>[]
  since: number | undefined
  readonly run: string | undefined
  /** The highest iteration, and what requests have counted, that are counted in a line. */
  iteration: number
  counted: Counts
  /** The newest iterations below that one in no line: other processes count them, or their answers come late. */
  skipped: readonly number[]
}

/** How many iterations a run remembers that were skipped. */
const MAX_SKIPPED = 32

/** Nothing was used since the line before. */
const UNUSED = { used: NO_COUNTS, tools: [], since: undefined }

const isAnswer = ({ usage }: Answered) => usage.input + usage.output > 0

/** Returns the newest iterations of a run that are in no line, after the answer of one. */
function skippedAfter(answered: number, { iteration, skipped }: OpenRun): readonly number[] {
  const left = skipped.filter((one) => one !== answered)
  for (let at = Math.max(iteration + 1, answered - MAX_SKIPPED); at < answered; at++) left.push(at)
  return left.slice(-MAX_SKIPPED)
}

/** The answers of several workers may come in another order than they were given. */
function count(run: OpenRun, event: Answered, now: number): void {
  const { iteration, apiId, usage, tools = [] } = event
  const isStep = isAnswer(event) && iteration > 0
  const isKnown = isStep && apiId !== undefined
  const isLate = isKnown && run.skipped.includes(iteration)
  const skips = isKnown && run.iteration > 0 && iteration > run.iteration + 1
  const counted = countedWithRequests(event.counts)
  // What was counted with the iterations between is not known here.
  const before = isLate || skips ? countedWithoutNew(event) : run.counted
  // Runs without an id share a line; the same iteration again is a model that was asked again.
  const isNext = isStep && (apiId === undefined || iteration > run.iteration || isLate)
  const steps = { iterations: Number(isNext), runs: Number(isNext && iteration === 1) }
  run.used = add(run.used, add(countsOf(usage), { ...minus(counted, before), ...steps }))
  if (isKnown) run.skipped = skippedAfter(iteration, run)
  if (isNext) run.iteration = Math.max(run.iteration, iteration)
  // A cost that comes later is that of an older answer.
  const isOlder = !isAnswer(event) && (counted.tool_calls ?? 0) < (run.counted.tool_calls ?? 0)
  if (!isLate && !isOlder) run.counted = counted
  run.since ??= now
  run.tools = withAmounts(run.tools, tools, add)
}

/** Returns the lines of runs; none for a run that goes on and has used nothing. */
function textOf(runs: readonly OpenRun[], end: string | null, time: string): string {
  let text = ''
  for (const { of, used, since, tools: all } of runs) {
    if (end === null && tokensIn(used) + (used.cost ?? 0) === 0) continue
    const tools = all.map(({ name, amount: { input = 0, cost = 0 } }) => ({ tool: name, input, cost_usd: cost }))
    const began = since === undefined ? time : new Date(since).toISOString()
    text += `${JSON.stringify({ time, since: began, ...of, ...amountsOf(used), tools, end })}\n`
  }
  return text
}

const keyOf = (apiId: string, thread: number) => `${apiId} ${thread}`

/** Returns the key of the line that requests share before their conversations have an id. */
function openingKeyOf({ client, key, upstream, model }: Answered): string {
  return JSON.stringify([client, key, upstream, model.slice(0, MAX_NAME)])
}

type WriteLines = (runs: readonly OpenRun[], end: string | null) => void

function noteAnswer(open: Map<string, OpenRun>, event: Answered, writeLines: WriteLines, now: number): void {
  const { apiId, upstream, model } = event
  const key = apiId === undefined ? openingKeyOf(event) : keyOf(apiId, event.thread)
  const before = open.get(key)
  // The first answer of a run may have gone through another process.
  const isOther = before?.run !== undefined && event.run !== undefined && before.run !== event.run
  const isNewRun = (event.isNewRun || isOther) && apiId !== undefined && isAnswer(event)
  const isSame = before?.of.model === model.slice(0, MAX_NAME) && before.of.upstream === upstream && !isNewRun
  if (before && isSame) return count(before, event, now)
  const [oldest] = open
  if (before) writeLines([before], null)
  else if (oldest && open.size >= MAX_OPEN) {
    writeLines([oldest[1]], null)
    open.delete(oldest[0])
  }
  const run = begin(event, isNewRun ? undefined : before)
  const opening = before || !event.isSecond ? undefined : open.get(openingKeyOf(event))
  if (opening) claimFirst(opening, run, event)
  open.set(key, run)
  count(run, event, now)
}

export type Journal = ReturnType<typeof createJournal>

/** Opens a journal. Nothing is written before a run ends or an hour is over. */
export function createJournal({ path, now, after, emit }: JournalOptions) {
  const open = new Map<string, OpenRun>()
  let hasFailed = false
  /** Lines that could not be written: they come before the next. */
  let left = ''
  /** Says once that the journal fails, until it can be written again. */
  const report = (problem: string | undefined) => {
    if (problem !== undefined && !hasFailed) emit({ kind: 'journal_failed', problem })
    hasFailed = problem !== undefined
  }
  // Known at once: the first line may be hours away.
  let written = whyUnwritable(path).then(report)
  const writeLines: WriteLines = (runs, end) => {
    const text = textOf(runs, end, new Date(now()).toISOString())
    written = written.then(async () => {
      if (left + text === '') return
      const { left: all, problem } = await append(path, left + text)
      left = all.length > MAX_LEFT ? all.slice(all.indexOf('\n', all.length - MAX_LEFT) + 1) : all
      report(problem)
    })
  }
  const endHour = (): void => {
    writeLines([...open.values()], null)
    for (const [key, run] of open) {
      // A run that used nothing in this hour was left in the middle.
      if (tokensIn(run.used) === 0) open.delete(key)
      Object.assign(run, UNUSED)
    }
    cancel = after(HOUR - (now() % HOUR), endHour)
  }
  let cancel = after(HOUR - (now() % HOUR), endHour)
  return {
    record(event: ProxyEvent): void {
      if (event.kind === 'answered') noteAnswer(open, event, writeLines, now())
      if (event.kind !== 'run_ended') return
      const key = keyOf(event.apiId, event.thread)
      const run = open.get(key)
      if (run) writeLines([run], event.state)
      open.delete(key)
    },
    /** Resolves once all lines that are due are written, or failed to be. */
    settled: () => written,
    /** Returns the lines of what is not written yet. */
    unwritten: () => left + textOf([...open.values()], null, new Date(now()).toISOString()),
    /** Writes what is not written yet. Never rejects. */
    async close(): Promise<void> {
      cancel()
      writeLines([...open.values()], null)
      open.clear()
      await written
    },
  }
}
