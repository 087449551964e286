/**
 * Keeps the sums of scopes of time in a small file, so that they survive the end of the process. All Governors of a
 * user on a machine share it: each writes what it has counted itself, and reads what the others have.
 */
import { readFile, stat } from 'node:fs/promises'
import { setImmediate } from 'node:timers/promises'
import { type Account, mergedAccount, partsOf } from '../core/budget/ledger.ts'
import { add } from '../core/counters.ts'
import { isObject, type Json } from '../core/json-object.ts'
import { errorOf, ignore } from '../core/thrown.ts'
import { readShared, replaceShared, whileLocked } from '../store/shared-file.ts'
import { KEPT_MS, type Ledger, MAX_ACCOUNTS } from './ledger.ts'

/** Milliseconds between two writes, and between two looks at the file while requests come. */
const WRITE_MS = 1_000
const LOOK_MS = 250
/** For each so many accounts the next write comes a second later. */
const WRITTEN_A_SECOND = 5_000
/** Accounts after which other requests have their turn. */
const CHUNK = 500
/** The part of all processes that have ended. */
const ENDED = 'p:ended'
const FORMAT = { governor: 'usage.state', version: 1 } as const

/** An account, and when its period ends. */
interface Kept {
  readonly end: number
  readonly account: Account
}

interface UsageStateOptions {
  readonly path: string
  readonly ledger: Pick<Ledger, 'own' | 'time' | 'kept' | 'merge'>
  /** Called once until the file can be written again; `problem`: why it can't, for people. */
  readonly failed: (problem: string) => void
  /** Called with the new name of a file that was no state of Governor's. */
  readonly setAside: (name: string) => void
}

function isCounts(value: unknown): boolean {
  return isObject(value) && Object.values(value).every((one) => typeof one === 'number' && one >= 0 && one < 1e18)
}

function isKept(value: unknown): value is Kept {
  if (!isObject(value) || typeof value['end'] !== 'number' || !isObject(value['account'])) return false
  const account = value['account']
  const { limits } = account
  const isLimited = limits === undefined || (isObject(limits) && isCounts(limits['max']))
  return (
    isLimited &&
    partsOf(account).every((name) => {
      const part = account[name]
      return isObject(part) && isCounts(part['used']) && isCounts(part['held']) && typeof part['until'] === 'number'
    })
  )
}

type Accounts = Map<string, Kept>

/** What a file has: the accounts, and fields of a newer version. */
interface Content {
  readonly rest: Json
  readonly accounts: Accounts
}

/** Returns the accounts in a file's text; `undefined` if it is no state of Governor's, or a torn one. */
function accountsIn(text: string): Content | undefined {
  let tree: unknown
  try {
    tree = JSON.parse(text)
  } catch {
    return undefined
  }
  if (!isObject(tree) || tree['governor'] !== FORMAT.governor || !isObject(tree['accounts'])) return undefined
  const { accounts, ...rest } = tree
  const kept = new Map<string, Kept>()
  if (isObject(accounts)) for (const [name, one] of Object.entries(accounts)) if (isKept(one)) kept.set(name, one)
  // A field of a newer version is carried along.
  return { rest, accounts: kept }
}

/** Returns an account without the part of a process that ends: what it has used stays. */
function withEnded(account: Account, own: `p:${string}`): Account {
  const { [own]: mine, ...others } = account
  if (!mine) return account
  const before = account[ENDED]
  return { ...others, [ENDED]: { used: before ? add(before.used, mine.used) : mine.used, held: {}, until: 0 } }
}

function newState(options: UsageStateOptions) {
  const changing: { timer?: NodeJS.Timeout | undefined; written?: Content & { readonly mark: string } } = {}
  return {
    /** `written`: what this process has written, and the state of the file then. */
    ...changing,
    options,
    /** The state of the file that was read last. */
    seen: '',
    lookedAt: Number.NEGATIVE_INFINITY,
    writtenAt: Number.NEGATIVE_INFINITY,
    isFailing: false,
    isClosed: false,
    running: Promise.resolve(),
  }
}

type State = ReturnType<typeof newState>

/** Returns what tells one state of a file from another; an empty text without a file. */
async function markOf(path: string): Promise<string> {
  const found = await stat(path, { bigint: true }).catch(ignore)
  return found ? `${found.ino} ${found.mtimeNs} ${found.size}` : ''
}

/** Reads the file, and takes over what other processes wrote; a file that can't be read gets another name. */
async function read({ options, written }: State): Promise<Content> {
  const { path, setAside } = options
  if (written && written.mark === (await markOf(path))) return written
  const found = await readShared(path, accountsIn, `${path}.unreadable-${Date.now()}`, setAside)
  if (!found) return { rest: {}, accounts: new Map() }
  await merge(options, found.accounts)
  return found
}

/** Takes over what the file has of other processes; the accounts are then as this process knows them. */
async function merge({ ledger }: UsageStateOptions, accounts: Accounts): Promise<void> {
  let read = 0
  for (const [name, { end, account: there }] of accounts) {
    if (++read % CHUNK === 0) await setImmediate()
    if (end + KEPT_MS < ledger.time()) continue
    const account = await ledger.merge(name, end, (here) => mergedAccount(here, there, ledger.own))
    accounts.set(name, { end, account })
  }
}

/** Writes what all processes have used, in place of the file. `isLast`: this process ends. */
async function writeSums(state: State, isLast: boolean): Promise<void> {
  const { path, ledger } = state.options
  const { rest, accounts } = await read(state)
  for (const { name, end, account } of ledger.kept())
    accounts.set(name, { end, account: isLast ? withEnded(account, ledger.own) : account })
  const time = ledger.time()
  for (const [name, { end }] of accounts) if (end + KEPT_MS < time) accounts.delete(name)
  // Of more accounts, those whose period ends first are forgotten.
  const byEnd = accounts.size > MAX_ACCOUNTS ? [...accounts].sort(([, one], [, other]) => other.end - one.end) : []
  for (const [name] of byEnd.slice(MAX_ACCOUNTS)) accounts.delete(name)
  await replaceShared(path, { ...FORMAT, ...rest, accounts: Object.fromEntries(accounts) })
  state.seen = await markOf(path)
  state.written = { rest, accounts, mark: state.seen }
}

/** Writes after what is being written. Never rejects: what can't be written is said once, and stays in memory. */
function writeInTurn(state: State, isLast: boolean): Promise<void> {
  const { path, failed } = state.options
  const write = async () => {
    try {
      await whileLocked(path, () => writeSums(state, isLast))
      state.isFailing = false
    } catch (error) {
      if (!state.isFailing) failed(errorOf(error).message)
      state.isFailing = true
      // Nothing more may be used before the process is killed.
      writeSoon(state)
    }
  }
  state.running = state.running.then(write)
  return state.running
}

/** Writes the sums soon: at most once a second, less often where there are many. */
function writeSoon(state: State): void {
  const begin = () => {
    state.timer = undefined
    state.writtenAt = performance.now()
    void writeInTurn(state, false)
  }
  if (state.isClosed) return
  const pause = WRITE_MS * Math.max(1, (state.written?.accounts.size ?? 0) / WRITTEN_A_SECOND)
  state.timer ??= setTimeout(begin, Math.max(0, state.writtenAt + pause - performance.now())).unref()
}

/** Creates the keeper of a file. Nothing here rejects. */
export function createUsageState(options: UsageStateOptions) {
  const state = newState(options)
  const { path } = options
  return {
    /** Reads the file, and tries whether it can be written. */
    async open(): Promise<void> {
      state.writtenAt = performance.now()
      await writeInTurn(state, false)
    },
    /** Reads what other processes have written since the last look. */
    async look(): Promise<void> {
      if (performance.now() - state.lookedAt < LOOK_MS) return
      state.lookedAt = performance.now()
      const mark = await markOf(path)
      if (mark === state.seen || mark === '') return
      state.seen = mark
      const found = accountsIn(await readFile(path, 'utf8').catch(() => ''))
      if (found) await merge(options, found.accounts)
    },
    changed: () => writeSoon(state),
    /** Writes the sums for the last time. */
    async close(): Promise<void> {
      state.isClosed = true
      clearTimeout(state.timer)
      state.timer = undefined
      if (options.ledger.kept().length > 0) await writeInTurn(state, true)
    },
  }
}
