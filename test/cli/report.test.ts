/** The journal of usage, and `governor report`, with the built program. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { UsageError } from '../../src/cli/command.ts'
import { report } from '../../src/cli/journal/report.ts'
import type { JournalLine } from '../../src/telemetry/journal.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { MAIN, startProcess, temporaryFolder } from '../support/process.ts'
import { runaway, startProvider } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

const models = [{ model: 'gpt-test', price: { input: 1_000, output: 10_000 } }]
const named = (name: string) => ({ headers: { 'x-governor-session': name, 'user-agent': 'my-agent/2.1' } })

const linesIn = (file: string) =>
  readFileSync(file, 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as JournalLine)

/** Runs the built program to its end. */
function governor(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [MAIN, ...args], {
    cwd: temporaryFolder(),
    encoding: 'utf8',
    env: { TZ: 'UTC', ...env },
  })
  return { status, stdout, stderr }
}

describe('the journal of a Governor', () => {
  it('gets a line for a run that is stopped and one for a run that is left when Governor ends, and nobody else may read it', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const journal = join(temporaryFolder(), 'state', 'usage.jsonl')
    const { url, child, exitCode } = await startProcess(provider.url, {
      usage: { journal },
      models,
      budget: { max_iterations: 3 },
    })
    await runAgent(url, START, named('stopped'))
    await runAgent(url, START, { ...named('left'), max: 2 })
    await expect
      .poll(() => (existsSync(journal) ? readFileSync(journal, 'utf8') : ''))
      .toMatch(/^\{[^\n]*"session":"stopped"[^\n]*"end":"tool_limit_reached"\}\n$/)
    child.kill('SIGTERM')
    expect(await exitCode).toBe(0)
    const lines = linesIn(journal)
    const of = (name: string) => lines.filter(({ session }) => session === name)
    expect(of('left')).toEqual([
      {
        time: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
        session: 'left',
        id: expect.stringMatching(/^s/),
        since: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
        thread: 1,
        depth: 0,
        client: 'my-agent',
        key: null,
        model: 'gpt-test',
        upstream: 'openai',
        runs: 1,
        iterations: 2,
        calls: 1,
        input: 200,
        cached_input: 0,
        cache_write: 0,
        output: 20,
        reasoning: 0,
        cost_usd: 0.4,
        price_known: true,
        tools: [{ tool: 'search', input: expect.any(Number), cost_usd: expect.any(Number) }],
        end: null,
      },
    ])
    const sum = (key: 'runs' | 'iterations' | 'calls' | 'input') =>
      of('stopped').reduce((total, line) => total + line[key], 0)
    expect([sum('runs'), sum('iterations'), sum('calls'), sum('input')]).toEqual([1, 3, 3, 400])
    expect(statSync(journal).mode & 0o777).toBe(0o600)
    expect(readFileSync(journal, 'utf8')).not.toContain('research agent')
  })

  it('gets a line for each hour of a running run, and nothing for an hour without use', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const time = { now: Date.parse('2026-11-23T10:20:00Z') }
    const calls = new Map<number, () => void>()
    const both = await startBoth(
      runaway(),
      { usage: { journal }, models },
      {
        now: () => time.now,
        after(delay, call) {
          calls.set(delay, call)
          return () => calls.delete(delay)
        },
      },
    )
    const { messages } = await runAgent(both.url, START, { ...named('long'), max: 2 })
    const endHour = () => {
      time.now = Date.parse('2026-11-23T11:00:00Z')
      const due = calls.get(40 * 60_000) ?? calls.get(60 * 60_000)
      calls.clear()
      due?.()
    }
    endHour()
    await runAgent(both.url, messages, { ...named('long'), max: 1 })
    endHour()
    endHour()
    await both.governor.close()
    expect(linesIn(journal).map(({ runs, iterations, calls: made, input }) => [runs, iterations, made, input])).toEqual(
      [
        [1, 2, 1, 200],
        [0, 1, 1, 100],
      ],
    )
  })

  it('begins a new file when it is large, and keeps four older ones', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const large = `${'x'.repeat(8 * 1_048_576)}\n`
    for (const [at, suffix] of ['', '.1', '.2', '.3', '.4'].entries())
      writeFileSync(journal + suffix, at === 0 ? large : `${at}\n`)
    const both = await startBoth(runaway(), { usage: { journal }, models })
    await runAgent(both.url, START, { ...named('new'), max: 1 })
    await both.governor.close()
    expect(linesIn(journal)).toHaveLength(1)
    expect(statSync(`${journal}.1`).size).toBe(large.length)
    expect(readFileSync(`${journal}.4`, 'utf8')).toBe('3\n')
    expect(existsSync(`${journal}.5`)).toBe(false)
  })

  it('holds all of a run that ended, its first request too, whose conversation had no id yet', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const both = await startBoth(runaway(), { usage: { journal }, models, budget: { max_iterations: 3 } })
    await runAgent(both.url, START, { headers: { 'user-agent': 'my-agent/2.1' } })
    await runAgent(both.url, START, { headers: { 'user-agent': 'my-agent/2.1' }, max: 1 })
    await expect.poll(() => (existsSync(journal) ? linesIn(journal).length : 0), { timeout: 20_000 }).toBe(1)
    await both.governor.close()
    const [whole, opening] = linesIn(journal)
    expect(whole).toMatchObject({ runs: 1, iterations: 3, end: 'tool_limit_reached' })
    expect(whole?.id).toMatch(/^s/)
    // The other agent sent one request alone, so that its conversation never got an id.
    expect(opening).toMatchObject({ session: null, id: null, runs: 1, iterations: 1, end: null })
  })

  it('holds the first request of a run also where the second one ends it', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const both = await startBoth(runaway(), { usage: { journal }, models, budget: { max_iterations: 1 } })
    await runAgent(both.url, START)
    await both.governor.close()
    const one = { runs: 1, iterations: 1, input: 200, cost_usd: 0.4, end: 'tool_limit_reached' }
    expect(linesIn(journal)).toEqual([expect.objectContaining({ id: expect.stringMatching(/^s/), ...one })])
  })

  it('that can not be written is in the log at once', async () => {
    const journal = temporaryFolder()
    const both = await startBoth(runaway(), { usage: { journal } })
    await expect.poll(() => both.logs.join('')).toContain(`${journal} is a folder`)
    await both.governor.close()
  })

  it('costs no request where it can not be written, and the log says so once', async () => {
    const both = await startBoth(runaway(), {
      usage: { journal: '/dev/null/usage.jsonl' },
      budget: { max_iterations: 2 },
    })
    for (const name of ['one', 'two']) {
      const { messages } = await runAgent(both.url, START, named(name))
      expect(messages.length).toBeGreaterThan(3)
    }
    await both.governor.close()
    expect(both.logs.filter((line) => line.includes('journal of usage not written'))).toHaveLength(1)
  })
})

const line = (time: string, more: Partial<JournalLine>): string =>
  JSON.stringify({
    time,
    session: 'task',
    client: 'claude-cli',
    model: 'opus',
    runs: 1,
    iterations: 10,
    calls: 8,
    input: 120_000,
    cached_input: 90_000,
    cache_write: 0,
    output: 1_500,
    cost_usd: 1.25,
    price_known: true,
    ...more,
  })

const NOW = new Date().toISOString()

/** The home folder of somebody whose agents worked on three days. */
function homeWithJournal(): string {
  const home = temporaryFolder()
  const file = join(home, '.local/state/governor/usage.jsonl')
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(`${file}.1`, `${line('2026-11-21T10:00:00Z', {})}\n`)
  writeFileSync(
    file,
    [
      line('2026-11-22T23:30:00Z', { model: 'haiku', cost_usd: 0.1, session: '=evil()' }),
      '{"time": "2026-11-22T23:4',
      line(NOW, { model: 'house', cost_usd: 0, price_known: false, client: null }),
    ].join('\n'),
  )
  return home
}

describe('governor report', () => {
  it('says in one line that its journal can not be read', () => {
    const folder = temporaryFolder()
    const { status, stderr } = governor(['report', '--journal', folder])
    expect(stderr).toBe(
      `governor: the configuration is wrong\n  ${folder}: can't be read (a folder): name a file with --journal\n`,
    )
    expect(status).toBe(2)
  })

  it('adds the journal up by day and client, with their models, in a table with a total, also what is in older files', () => {
    const { status, stdout } = governor(['report'], { HOME: homeWithJournal() })
    expect(status).toBe(0)
    const rows = stdout.split('\n').map((row) => row.split(/ {2,}/).join(' | '))
    expect(rows).toEqual([
      'day | client | models | runs | iterations | input | output | cost',
      expect.stringMatching(/^─+$/),
      '2026-11-21 | claude-cli | opus | 1 | 10 | 120k | 1.5k | $1.25',
      '2026-11-22 | claude-cli | haiku | 1 | 10 | 120k | 1.5k | $0.10',
      `${NOW.slice(0, 10)} | unknown | house | 1 | 10 | 120k | 1.5k | ?`,
      expect.stringMatching(/^─+$/),
      'total | 3 | 30 | 360k | 4.5k | $1.35 + ?',
      '',
    ])
    expect(Math.max(...stdout.split('\n').map((row) => row.length))).toBeLessThanOrEqual(80)
  })

  it.each([
    ['model', ['opus', 'haiku', 'house']],
    ['client', ['claude-cli', 'unknown']],
    ['session', ['task', '=evil()']],
  ])('adds it up by %s as JSON lines, the dearest first', (by, keys) => {
    const { stdout } = governor(['report', '--by', by, '--json'], { HOME: homeWithJournal() })
    const lines = stdout
      .trimEnd()
      .split('\n')
      .map((text) => JSON.parse(text))
    expect(lines.map((one) => one[by])).toEqual(keys)
    expect(lines[0]).toMatchObject({ iterations: expect.any(Number), cost_usd: expect.any(Number) })
  })

  it('is a CSV file that no spreadsheet takes for a formula, by days of the place where it runs', () => {
    const HOME = homeWithJournal()
    const { stdout } = governor(['report', '--by', 'session', '--csv'], { HOME })
    expect(stdout.split('\n').slice(0, 1)).toEqual([
      'session,runs,iterations,calls,input,cached_input,cache_write,output,cost_usd,price_known',
    ])
    expect(stdout).toContain("\n'=evil(),1,10,8,120000,90000,0,1500,0.1,true\n")
    const days = governor(['report', '--csv'], { HOME, TZ: 'Asia/Tokyo' }).stdout
    expect(days).toContain('\n2026-11-23,')
  })

  it.each([
    ['7d', 1],
    ['2026-11-22', 2],
    ['2026-11-01', 3],
  ])('counts what came since %s', (since, runs) => {
    const home = homeWithJournal()
    const { stdout } = governor(['report', '--by', 'client', '--since', since, '--json'], { HOME: home })
    const sum = stdout
      .trimEnd()
      .split('\n')
      .reduce((total, text) => total + JSON.parse(text).runs, 0)
    if (since !== '7d') expect(sum).toBe(runs)
    else expect(sum).toBeGreaterThanOrEqual(runs)
  })

  it('reads a line whose names hold U+2028, which ends a line for readline from Node 24 on', () => {
    const file = join(temporaryFolder(), 'usage.jsonl')
    writeFileSync(file, `${line('2026-11-21T10:00:00Z', { model: 'a\u2028b' })}\n`)
    const { stdout } = governor(['report', '--by', 'model', '--json', '--journal', file])
    expect(JSON.parse(stdout)).toMatchObject({ model: 'a\u2028b', runs: 1 })
  })

  it.each([
    [['report'], 1, /usage\.jsonl holds no usage: Governor writes it with --journal FILE/],
    [
      ['report', '--journal', 'own'],
      1,
      /own holds no usage: Governor writes a line when a run ends, and at every full ho/,
    ],
    [['report', '--since', 'yesterday'], 2, /--since yesterday: expected a day such as 2026-11-01/],
    [['report', '--by', 'colour'], 2, /--by colour: expected day, model, client, key, session, tool, month, agent/],
  ])('%j without a journal ends with code %i', (args, code, says) => {
    const { status, stderr } = governor(args, { HOME: temporaryFolder() })
    expect(status).toBe(code)
    expect(stderr).toMatch(says)
  })
})

describe('a report', () => {
  /** The rows of what the command prints for a journal of these lines, cut at two spaces and more. */
  async function rowsOf(lines: readonly string[], flags: object, columns?: number): Promise<readonly string[]> {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    writeFileSync(journal, `${lines.join('\n')}\n`)
    const terminal = captureTerminal(columns === undefined ? {} : { columns, isInteractive: true })
    await report({ args: [], flags: { journal, ...flags } }, terminal)
    return terminal.printed.split('\n').map((row) => row.split(/ {2,}/).join(' | '))
  }
  const READ = { tool: 'Read', input: 60_000, cost_usd: 0.6 }

  it('by tool shows first whose results cost most, and all else in a row of its own', async () => {
    const lines = [
      line('2026-11-21T10:00:00Z', { tools: [{ tool: 'Bash', input: 20_000, cost_usd: 0.2 }, READ] }),
      line('2026-11-22T10:00:00Z', { tools: [READ], input: 70_000, cost_usd: 0.604 }),
    ]
    expect(await rowsOf(lines, { by: 'tool' })).toEqual([
      'tool | input | cost',
      expect.stringMatching(/^─+$/),
      'Read | 120k | $1.20',
      'Bash | 20k | $0.20',
      '(no tool) | 50k | $0.45',
      expect.stringMatching(/^─+$/),
      'total | 190k | $1.85',
      '',
    ])
  })

  it('by agent tells the agents of a session apart, and by month adds up whole months', async () => {
    const lines = [
      line('2026-10-31T10:00:00Z', { thread: 1, cost_usd: 3_000 }),
      line('2026-11-01T10:00:00Z', { thread: 2, cost_usd: 2 }),
      line('2026-11-30T10:00:00Z', { thread: 0, cost_usd: 0.0042 }),
    ]
    const named = await rowsOf(lines, { by: 'agent' })
    expect(named.slice(2, 5).map((row) => row.split(' | ')[0])).toEqual([
      'task · agent 1',
      'task · agent 2',
      'task · other requests',
    ])
    expect(named[2]).toMatch(/ \| \$3,000\.00$/)
    expect(named[4]).toMatch(/ \| \$0\.0042$/)
    expect((await rowsOf(lines, { by: 'month' })).slice(2, 4).map((row) => row.split(' | ')[0])).toEqual([
      '2026-10',
      '2026-11',
    ])
  })

  it('counts until the end of a day', async () => {
    const lines = ['2026-11-01T12:00:00', '2026-11-02T12:00:00', '2026-11-03T12:00:00'].map((time) => line(time, {}))
    const rows = await rowsOf(lines, { by: 'day', since: '2026-11-02', until: '2026-11-02' })
    expect(rows.slice(2, -3).map((row) => row.slice(0, 10))).toEqual(['2026-11-02'])
    await expect(rowsOf(lines, { until: 'tomorrow' })).rejects.toThrow('--until tomorrow: expected a day')
    for (const since of ['2026-11-02', '2026-11-05']) {
      const turned = rowsOf(lines, { since, until: '2026-11-01' })
      await expect(turned).rejects.toThrow(`--until 2026-11-01 is before --since ${since}`)
    }
  })

  it('cuts names where a person watches, and never in a pipe', async () => {
    const session = 'a-session-with-a-long-name-'.repeat(4)
    const lines = [line('2026-11-21T10:00:00Z', { session, model: 'm'.repeat(70) })]
    expect((await rowsOf(lines, { by: 'session' })).join('\n')).toContain(session)
    expect((await rowsOf(lines, {})).join('\n')).toContain('m'.repeat(70))
    for (const flags of [{ by: 'session' }, {}]) {
      const journal = join(temporaryFolder(), 'usage.jsonl')
      writeFileSync(journal, `${lines.join('\n')}\n`)
      const terminal = captureTerminal({ columns: 80, isInteractive: true })
      await report({ args: [], flags: { journal, ...flags } }, terminal)
      for (const row of terminal.printed.split('\n')) expect(row.length).toBeLessThanOrEqual(80)
    }
  })
})

describe('a report of any file', () => {
  /** What the command prints for a journal of these lines. */
  async function printed(lines: readonly string[], flags: object): Promise<string> {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    writeFileSync(journal, `${lines.join('\n')}\n`)
    const terminal = captureTerminal()
    await report({ args: [], flags: { journal, ...flags } }, terminal)
    return terminal.printed
  }

  it('adds up what it can read of each line, whatever its members are', async () => {
    const whole = JSON.parse(line('2026-11-21T10:00:00Z', {})) as Record<string, unknown>
    const members = fc.dictionary(
      fc.constantFrom(...Object.keys(whole), 'other'),
      fc.oneof(fc.jsonValue(), fc.constantFrom('HUGE', -1, null, 'x', [], {})),
    )
    const text = fc.oneof(
      fc.jsonValue().map((value) => JSON.stringify(value)),
      members.map((some) => JSON.stringify({ ...whole, ...some }).replaceAll('"HUGE"', '1e999')),
      members.map((some) => JSON.stringify({ time: whole['time'], ...some })),
      fc.string(),
    )
    await fc.assert(
      fc.asyncProperty(
        fc.array(text, { maxLength: 5 }),
        fc.constantFrom(undefined, 'day', 'month', 'model', 'client', 'session', 'agent', 'tool'),
        fc.constantFrom({}, { json: true }, { csv: true }),
        async (lines, by, how) => {
          const shown = await printed([...lines, line('2026-11-21T10:00:00Z', { runs: 7 })], {
            ...(by && { by }),
            ...how,
          })
          expect(shown).toMatch(/\S/)
          expect(shown).not.toMatch(/NaN|undefined|Infinity|Invalid/)
        },
      ),
      { numRuns: 150 },
    )
  })

  it('counts from any day of the calendar, and refuses a day that there is not', async () => {
    const lines = [line('9999-12-31T23:00:00Z', {})]
    const day = fc.date({ min: new Date('1971-01-01'), max: new Date('9999-12-30'), noInvalidDate: true })
    await fc.assert(
      fc.asyncProperty(day, async (date) => {
        await printed(lines, { since: date.toISOString().slice(0, 10) })
      }),
      { numRuns: 50 },
    )
    const never = fc.tuple(fc.integer({ min: 1971, max: 2400 }), fc.nat({ max: 19 }), fc.nat({ max: 39 }))
    await fc.assert(
      fc.asyncProperty(never, async ([year, month, of]) => {
        const since = `${year}-${String(month).padStart(2, '0')}-${String(of).padStart(2, '0')}`
        const isDay = month > 0 && month < 13 && of > 0 && of <= new Date(Date.UTC(year, month, 0)).getUTCDate()
        const done = printed(lines, { since })
        await (isDay ? done : expect(done).rejects.toThrow(UsageError))
      }),
      { numRuns: 100 },
    )
  })
})
