/** One journal that several Governors write, while its files are renamed and its disk is full. */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { createJournal, journalFile, OLDER_FILES } from '../../src/telemetry/journal.ts'
import { linesInJournal } from '../../src/telemetry/usage-sums.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startGovernor } from '../support/governor.ts'
import { startProcess, temporaryFolder } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { type ChatMessage, type Received, runaway, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'

const LARGE = 8 * 1_048_576

/** Returns the sessions of all lines in all files, sorted, and how many texts are no line. */
function readAll(path: string) {
  const sessions: string[] = []
  let broken = 0
  for (let older = OLDER_FILES; older >= 0; older--) {
    const file = journalFile(path, older)
    for (const text of existsSync(file) ? readFileSync(file, 'utf8').split('\n') : [])
      try {
        if (text !== '') sessions.push(JSON.parse(text).session)
      } catch {
        broken++
      }
  }
  return { sessions: sessions.sort(), broken }
}

/** One of several processes that write a journal; its hours end when the test says so. */
function startWriter(path: string, name: string) {
  let endHour = () => {}
  let sessions = 0
  const problems: string[] = []
  const journal = createJournal({
    path,
    now: () => Date.parse('2026-11-23T10:20:00Z'),
    after(_, call) {
      endHour = call
      return () => undefined
    },
    emit: (event) => void (event.kind === 'journal_failed' && problems.push(event.problem)),
  })
  return {
    problems,
    close: journal.close,
    endHour: () => endHour(),
    /** Counts an answer of a new session; returns the session. */
    answer(): string {
      const session = `${name}-${sessions++}-`.padEnd(200, 'x')
      const place = { thread: 1, isNewRun: true, iteration: 1, counts: {} }
      const usage = { input: 1, output: 1, estimated: false }
      const whose = { session, apiId: session, client: 'agent', model: 'm', upstream: 'openai' }
      journal.record({ kind: 'answered', ...whose, ...place, usage })
      return session
    },
  }
}

/** A writer counts so many answers and writes them. `waits`: the disk works before the next turn. */
interface Turn {
  readonly writer: number
  readonly answers: number
  readonly waits: boolean
}

const turns = (writers: number) =>
  fc.array(fc.record({ writer: fc.nat({ max: writers - 1 }), answers: fc.nat({ max: 4 }), waits: fc.boolean() }), {
    minLength: 1,
    maxLength: 30,
  })

/** Has writers write what each turn says, none waiting for another, and all of it at their end. */
async function writeAll(path: string, count: number, plan: readonly Turn[], free = () => {}) {
  const writers = Array.from({ length: count }, (_, at) => startWriter(path, `w${at}`))
  const expected: string[] = []
  for (const { writer, answers, waits } of plan) {
    const one = writers[writer]
    for (let at = 0; one && at < answers; at++) expected.push(one.answer())
    one?.endHour()
    // A few round trips to the disk, in which some of the writing is done.
    for (let trips = 0; waits && trips < 8; trips++) await stat(dirname(path))
  }
  free()
  await Promise.all(writers.map(({ close }) => close()))
  return { expected: expected.sort(), problems: writers.flatMap(({ problems }) => problems) }
}

describe('a journal that several processes write', () => {
  it('loses no line and no file while it is renamed, in any order of writing', async () => {
    const property = fc.asyncProperty(turns(6), fc.integer({ min: -200, max: 600 }), async (plan, room) => {
      const path = join(temporaryFolder(), 'usage.jsonl')
      const old = (name: string, length = 0) => `${JSON.stringify({ session: name, fill: 'x'.repeat(length) })}\n`
      writeFileSync(path, old('newest', LARGE - room))
      for (let older = 1; older < OLDER_FILES; older++) writeFileSync(journalFile(path, older), old(`old-${older}`))
      // All find the file at the same time; what follows is in any order.
      const first = Array.from({ length: 6 }, (_, writer) => ({ writer, answers: 1, waits: false }))
      const { expected, problems } = await writeAll(path, 6, [...first, ...plan])
      const before = ['newest', 'old-1', 'old-2', 'old-3']
      expect(readAll(path)).toEqual({ sessions: [...before, ...expected].sort(), broken: 0 })
      expect(problems).toEqual([])
    })
    await fc.assert(property, { numRuns: 12 })
  })

  it('is read to its end where its files are renamed meanwhile', async () => {
    const path = join(temporaryFolder(), 'usage.jsonl')
    const line = (session: string) => `${JSON.stringify({ time: '2026-11-28T12:00:00Z', session })}\n`
    writeFileSync(path, line('newest'))
    for (let older = 1; older <= OLDER_FILES; older++) writeFileSync(journalFile(path, older), line(`old-${older}`))
    const read: unknown[] = []
    for await (const { session } of linesInJournal(path)) {
      if (read.push(session) > 1) continue
      for (let older = OLDER_FILES; older > 0; older--)
        renameSync(journalFile(path, older - 1), journalFile(path, older))
      writeFileSync(path, line('since'))
    }
    expect(read).toEqual(['old-4', 'old-3', 'old-2', 'old-1', 'newest'])
  })

  it('is renamed once, by real processes that find it large at the same time', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const journal = join(temporaryFolder(), 'usage.jsonl')
    writeFileSync(journal, `${JSON.stringify({ session: 'newest', fill: 'x'.repeat(LARGE) })}\n`)
    for (let older = 1; older < OLDER_FILES; older++)
      writeFileSync(journalFile(journal, older), `${JSON.stringify({ session: `old-${older}` })}\n`)
    const config = { usage: { journal }, budget: { max_iterations: 2 } }
    const all = await Promise.all(Array.from({ length: 4 }, () => startProcess(provider.url, config)))
    const names = all.map((_, at) => [`p${at}-a`, `p${at}-b`])
    await Promise.all(
      all.map(async ({ url }, at) => {
        for (const name of names[at] ?? []) await runAgent(url, START, { headers: { 'x-governor-session': name } })
      }),
    )
    for (const { child } of all) child.kill('SIGTERM')
    for (const { exitCode } of all) expect(await exitCode).toBe(0)
    const { sessions, broken } = readAll(journal)
    expect([...new Set(sessions)]).toEqual(['newest', 'old-1', 'old-2', 'old-3', ...names.flat()].sort())
    expect(broken).toBe(0)
    expect(statSync(journalFile(journal, 1)).size).toBeGreaterThan(LARGE)
  })

  it('begins a new file again after a process was killed while it renamed', async () => {
    const path = join(temporaryFolder(), 'usage.jsonl')
    writeFileSync(path, `${'x'.repeat(LARGE)}\n`)
    writeFileSync(`${path}.lock`, '')
    utimesSync(`${path}.lock`, 1, 1)
    const writer = startWriter(path, 'w')
    const expected = [writer.answer()]
    writer.endHour()
    expected.push(writer.answer())
    await writer.close()
    expect(readAll(path).sessions).toEqual(expected)
    expect(statSync(path).size).toBeLessThan(LARGE)
    expect(existsSync(`${path}.lock`)).toBe(false)
  })
})

/** Mounts a small disk in memory, which only root may do; returns its folder. */
function mountDisk(kilobytes: number): string | undefined {
  const folder = temporaryFolder()
  const mount = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${kilobytes}k`, 'tmpfs', folder])
  if (mount.status !== 0) return undefined
  onTestFinished(() => void spawnSync('umount', ['-l', folder]))
  return folder
}

const isRoot = process.getuid?.() === 0
if (!isRoot) process.stderr.write('Skipped, as only root may mount a disk: a journal on a full disk\n')

describe.runIf(isRoot)('a journal on a full disk', () => {
  it('gets every line once there is room again, in any order of writing', async () => {
    const folder = mountDisk(32)
    if (folder === undefined) throw new Error('this machine mounts no disk')
    let fails = 0
    const property = fc.asyncProperty(turns(3), fc.nat({ max: 8_192 }), async (plan, room) => {
      for (const file of readdirSync(folder)) rmSync(join(folder, file))
      const path = join(folder, 'usage.jsonl')
      const other = join(folder, 'other')
      writeFileSync(other, 'x'.repeat(28_672))
      writeFileSync(path, `${JSON.stringify({ session: 'newest', fill: 'x'.repeat(Math.max(0, 4_000 - room)) })}\n`)
      const { expected, problems } = await writeAll(path, 3, plan, () => rmSync(other))
      fails += problems.length
      expect(readAll(path).sessions).toEqual(['newest', ...expected].sort())
    })
    await fc.assert(property, { numRuns: 25 })
    expect(fails).toBeGreaterThan(0)
  })
})

describe('a journal of several workers', () => {
  /** The answers of two runs of a session, each answer of four with one call more than the one before. */
  const answers = [1, 2].flatMap((run) =>
    [1, 2, 3, 4].map((iteration) => ({
      run: `run ${run}`,
      iteration,
      isNewRun: iteration === 1,
      counts: { runs: 1, iterations: iteration, tool_calls: ((iteration - 1) * iteration) / 2 },
      newCalls: iteration - 1,
    })),
  )

  it('has each tool call once where the cost of an answer comes after the next one, as prices are loaded meanwhile', async () => {
    const path = join(temporaryFolder(), 'usage.jsonl')
    const journal = createJournal({ path, now: Date.now, after: () => () => undefined, emit: () => undefined })
    const whose = { session: 'one', apiId: 'one', client: 'agent', model: 'm', upstream: 'openai', thread: 1 }
    const tell = (
      answer: (typeof answers)[number] | undefined,
      usage: { readonly input: number; readonly cost?: number },
    ) =>
      answer &&
      journal.record({ kind: 'answered', ...whose, ...answer, usage: { output: 0, estimated: false, ...usage } })
    const [first, second, third] = answers
    for (const answer of [first, second]) tell(answer, { input: 1 })
    for (const answer of [first, second]) tell(answer, { input: 0, cost: 1 })
    tell(third, { input: 1, cost: 1 })
    await journal.close()
    expect(JSON.parse(readFileSync(path, 'utf8'))).toMatchObject({
      runs: 1,
      iterations: 3,
      calls: 3,
      input: 3,
      cost_usd: 3,
    })
  })

  it('has each run, iteration and tool call once, in whatever order the workers tell of their answers', async () => {
    const property = fc.asyncProperty(fc.shuffledSubarray(answers, { minLength: answers.length }), async (order) => {
      const path = join(temporaryFolder(), 'usage.jsonl')
      const journal = createJournal({ path, now: Date.now, after: () => () => undefined, emit: () => undefined })
      const whose = { session: 'one', apiId: 'one', client: 'agent', model: 'm', upstream: 'openai', thread: 1 }
      const usage = { input: 1, output: 1, estimated: false }
      for (const answer of order) journal.record({ kind: 'answered', ...whose, ...answer, usage })
      await journal.close()
      const lines = readFileSync(path, 'utf8').trim().split('\n')
      const sum = (name: string) => lines.reduce((all, line) => all + Number(JSON.parse(line)[name]), 0)
      expect([sum('runs'), sum('iterations'), sum('calls')]).toEqual([2, answers.length, 2 * 6])
    })
    await fc.assert(property, { numRuns: 300 })
  })
})

describe('the first answer of a conversation without a name', () => {
  it('stays in a line without a session where another agent of its client and model branches at its own first answer', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const path = join(temporaryFolder(), 'usage.jsonl')
    const { url, governor } = await startGovernor(provider.url, { usage: { journal: path } })
    await callModel(url, [{ role: 'user', content: 'A question that nothing follows.' }])
    const named = { headers: { 'x-governor-session': 'one' } }
    const { messages } = await runAgent(url, START, { ...named, max: 1 })
    await callModel(url, messages, named)
    await callModel(url, [...messages.slice(0, -1), { ...messages.at(-1), role: 'tool', content: 'Else.' }], named)
    await governor.close()
    const lines = readFileSync(path, 'utf8').trim().split('\n')
    const inputOf = (session: string | null) =>
      lines.map((line) => JSON.parse(line)).reduce((all, line) => all + (line.session === session ? line.input : 0), 0)
    expect([inputOf('one'), inputOf(null)]).toEqual([300, 100])
  })
})

describeWith('redis-server', 'a journal of two replicas', () => {
  it('has each run, iteration and tool call once, whichever replica each request goes through', async () => {
    const calls = 4
    const isOver = ({ json: { messages } }: Received) => messages.slice(-2 * calls).every(({ role }) => role !== 'user')
    const search = (number: number) => [{ name: 'search', arguments: { query: number } }]
    const provider = await startProvider((request, number) =>
      isOver(request) ? { text: 'It is 42.' } : { calls: search(number) },
    )
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const path = join(temporaryFolder(), 'usage.jsonl')
    const config = { store: 'redis', redis: { url: redis.url }, usage: { journal: path } }
    const two = await Promise.all([0, 1].map(() => startGovernor(provider.url, config)))
    const headers = { 'x-governor-session': 'one' }
    const messages: ChatMessage[] = []
    // Of three runs each begins with another replica, and the middle one goes through it twice in a row.
    for (const [at, text] of ['First.', 'Second.', 'Third.'].entries()) {
      messages.push({ role: 'user', content: text })
      for (let step = 0; step <= calls; step++) {
        const through = two[(at + step + Number(step > 2)) % 2]
        const { message } = await callModel(through?.url ?? '', messages, { headers })
        messages.push(message)
        for (const { id } of message.tool_calls ?? [])
          messages.push({ role: 'tool', tool_call_id: id, content: `result of ${id}` })
      }
    }
    await Promise.all(two.map(({ governor }) => governor.close()))
    const lines = readFileSync(path, 'utf8').trim().split('\n')
    const sum = (name: string) => lines.reduce((all, line) => all + Number(JSON.parse(line)[name]), 0)
    expect(provider.requests).toHaveLength(3 * (calls + 1))
    expect([sum('runs'), sum('iterations'), sum('calls')]).toEqual([3, provider.requests.length, 3 * calls])
    expect(sum('input')).toBe(100 * provider.requests.length)
  })
})
