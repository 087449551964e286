import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { run } from '../../src/cli/cli.ts'
import { groupRuns, suggestionText } from '../../src/cli/journal/suggest.ts'
import { checkConfig } from '../../src/config/load.ts'
import type { RunView } from '../../src/ops/sessions/api-schema.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { temporaryFolder } from '../support/process.ts'
import type { Script } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

const runOf = (changes: Partial<RunView> = {}): RunView => ({
  thread: 1,
  started_at: '2026-01-01T00:00:00.000Z',
  ended_at: null,
  iterations: 10,
  tool_calls: 12,
  tokens: 123_456,
  cost_usd: 0.5,
  price_known: true,
  cost_estimated: false,
  model: 'gpt-5',
  agent: 'codex_cli_rs',
  state: 'completed',
  terminal: null,
  ...changes,
})

/** As many runs, of 1, 2, 3 … iterations. */
const runsOf = (count: number, changes: Partial<RunView> = {}) =>
  Array.from({ length: count }, (_, at) => runOf({ iterations: at + 1, ...changes }))

async function called(url: string, ...args: readonly string[]) {
  const terminal = captureTerminal()
  const code = await run([...args, '--url', url], terminal)
  return { code, printed: terminal.printed, complaints: terminal.complaints }
}

/** Calls a tool as often as the task says, then answers. */
const obedient: Script = ({ json: { messages } }) => {
  const wanted = Number(String(messages.find(({ role }) => role === 'user')?.content))
  const made = messages.filter(({ role }) => role === 'tool').length
  return made < wanted ? { calls: [{ name: 'search', arguments: { at: made } }] } : { text: 'Done.' }
}

describe('governor suggest', () => {
  it('suggests twice the 95th percentile of completed runs as YAML that the configuration takes', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(
      obedient,
      { models: [{ model: 'gpt-test', price: { input: 1, output: 10 } }] },
      { now: () => time.now },
    )
    const task = (calls: number) => [{ role: 'user', content: String(calls) }]
    for (let calls = 1; calls <= 30; calls++) {
      const headers = { 'x-governor-session': `job ${calls}`, 'user-agent': 'my-agent/1.2 (linux)' }
      await runAgent(url, task(calls % 4), { headers })
    }
    const headers = { 'x-governor-session': 'other', 'user-agent': 'claude-cli/2.0' }
    await runAgent(url, task(3), { headers })
    // One that is at work.
    await runAgent(url, task(90), { headers: { ...headers, 'x-governor-session': 'long' }, max: 9 })
    time.now += 300_000
    const { code, printed } = await called(url, 'suggest')
    expect(code).toBe(0)
    for (const line of printed.split('\n')) expect(line.length).toBeLessThanOrEqual(80)
    expect(printed).not.toContain('\u001b')
    expect(printed).toMatch(/my-agent, gpt-test: 30 completed runs\n.*p50 +p95 +max\n# +iterations +2 +4 +4\n/)
    expect(printed).toMatch(/claude-cli, gpt-test: 1 completed run \(no suggestion below 30\)/)
    const { overrides } = checkConfig(parse(printed), 'test')
    expect(overrides).toMatchObject([
      {
        model: 'gpt-test',
        header: { 'user-agent': 'my-agent*' },
        budget: {
          max_iterations: 8,
          run: { max_tool_calls: 6, max_tokens: 880, max_cost_usd: 0.01 },
        },
      },
    ])
    expect(printed).toMatch(/max_iterations: 8 +# p95: 4\n/)
    const groups = (await called(url, 'suggest', '--json')).printed
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(groups).toMatchObject([
      {
        agent: 'my-agent',
        model: 'gpt-test',
        runs: 30,
        iterations: { p50: 2, p95: 4, max: 4 },
        tool_calls: { p50: 1, p95: 3, max: 3 },
        tokens: { p50: 220, p95: 440, max: 440 },
        budget: { p95: { max_iterations: 4 }, twice_p95: { max_iterations: 8 } },
      },
      { agent: 'claude-cli', runs: 1, budget: null },
    ])
  })

  it('says that there are no completed runs yet', async () => {
    const { url } = await startBoth(obedient)
    await runAgent(url, START, { max: 1 })
    const { printed } = await called(url, 'suggest')
    expect(printed).toBe('# no completed runs yet: see governor sessions\n')
    expect(parse(printed)).toBeNull()
    expect((await called(url, 'suggest', '--json')).printed).toBe('')
  })

  it('says in one line what is wrong', async () => {
    expect(await called('http://127.0.0.1:1', 'suggest')).toMatchObject({
      code: 1,
      complaints: expect.stringContaining('no Governor answers'),
    })
    expect((await called('http://127.0.0.1:1', 'suggest', 'x')).code).toBe(2)
  })

  it('reads the sessions with the token of GOVERNOR_ADMIN_TOKEN', async () => {
    const { url } = await startBoth(obedient, { ops: { admin_token: 'secret', trust_loopback: false } })
    expect(await called(url, 'suggest')).toMatchObject({
      code: 1,
      complaints: expect.stringContaining('refuses'),
    })
    const terminal = captureTerminal({ env: { GOVERNOR_ADMIN_TOKEN: 'secret' } })
    expect(await run(['suggest', '--url', url], terminal)).toBe(0)
  })
})

/** A journal of sessions of one run each, three a day, and of what their agents used beside them. */
function journalOf(sessions: number): string {
  const journal = join(temporaryFolder(), 'usage.jsonl')
  const lines: string[] = []
  for (let at = 0; at < sessions; at++) {
    const time = Date.parse('2026-08-01T10:00:00Z') + at * 8 * 3_600_000
    const used = {
      session: `s${at}`,
      id: `s${at}`,
      calls: 2,
      input: 900,
      output: 100,
      cost_usd: 0.5,
      price_known: true,
    }
    const since = new Date(time - 600_000).toISOString()
    const line = (thread: number, depth: number, more = {}) =>
      lines.push(JSON.stringify({ time: new Date(time).toISOString(), since, thread, depth, ...used, ...more }))
    line(1, 0, { runs: 1, iterations: 4, end: null })
    if (at % 2 === 0) for (const thread of [2, 3]) line(thread, 1, { runs: 1, iterations: 1, end: 'completed' })
    line(1, 0, { runs: 0, iterations: 1 + (at % 10), end: at === 5 ? 'tool_limit_reached' : 'completed' })
  }
  writeFileSync(journal, `${lines.join('\n')}\n`)
  return journal
}

describe('governor suggest, out of a journal alone', () => {
  const suggested = async (journal: string, ...args: readonly string[]) =>
    (await called('http://127.0.0.1:1', 'suggest', '--journal', journal, ...args)).printed

  it('suggests limits of runs, sessions, the tree of agents, the rate and each period, as YAML', async () => {
    const text = await suggested(journalOf(120))
    const { budget } = parse(text) as { budget: Record<string, Record<string, number>> }
    // Of the runs: 4 in the first line, up to 10 in the second.
    expect(budget).toMatchObject({
      max_iterations: 28,
      run: { max_tool_calls: 8, max_tokens: 4_000, max_cost_usd: 2 },
      session: { max_iterations: 30, max_agents: 4, max_concurrent_agents: 4, max_depth: 2 },
      velocity: { max_cost_usd: expect.any(Number), max_tokens: 200 },
      hour: { max_cost_usd: expect.any(Number) },
      day: { max_cost_usd: expect.any(Number), max_tokens: expect.any(Number), max_runs: expect.any(Number) },
      week: { max_cost_usd: expect.any(Number) },
    })
    // Less than three months say too little.
    expect(Object.keys(budget)).not.toContain('month')
    const { velocity: _, ...known } = budget
    expect(() => checkConfig({ budget: known }, 'test')).not.toThrow()
    expect(text).toMatch(/max_concurrent_agents: 4 +# 0 sessions; p95 2: 0 of 120\n/)
    expect(text).toMatch(/max_cost_usd: \d+ +# \d+ sessions in 4\d days; p95 \d+(\.\d+)?: \d+\n/)
    const json = (await suggested(journalOf(120), '--json')).trimEnd().split('\n')
    expect(json.map((line) => JSON.parse(line))).toContainEqual(
      expect.objectContaining({ limit: 'session.max_depth', unit: 'session', of: 120, p95: 1, twice_p95: 2 }),
    )
  })

  it('says what is wrong where the journal knows too little', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    expect(await called('http://127.0.0.1:1', 'suggest', '--journal', journal)).toMatchObject({ code: 1 })
  })
})

describe('a suggestion', () => {
  it('is made of completed runs alone', () => {
    const states = ['working', 'answered', 'tool_limit_reached', 'stopped', 'no_response', null] as const
    const others = states.flatMap((state) => runsOf(50, { state, iterations: 999 }))
    const [group] = groupRuns([...others, ...runsOf(20)])
    expect(group).toMatchObject({ runs: 20, spreads: { iterations: { p50: 10, p95: 19, max: 20 } } })
  })

  it.each([
    [29, 0],
    [30, 4],
  ])('from %i runs on has %i limits', (runs, limits) => {
    const [group] = groupRuns(runsOf(runs))
    expect(group?.limits).toHaveLength(limits)
  })

  it('sets no limit on what was not used, as 0 would be no limit', () => {
    const [group] = groupRuns(runsOf(30, { tool_calls: 0, cost_usd: 0 }))
    expect(group?.limits.map(({ key }) => key)).toEqual(['max_iterations', 'max_tokens'])
  })

  it('is none for runs that name neither agent nor model, as it would hold for all', () => {
    const [group] = groupRuns(runsOf(30, { agent: null, model: null }))
    expect(group?.limits).toEqual([])
  })

  it('stops, at p95, at most 1 in 20 of the runs that it was made of, and at twice that no more', () => {
    const counts = fc.array(fc.integer({ min: 1, max: 500 }), { minLength: 30, maxLength: 200 })
    fc.assert(
      fc.property(counts, (iterations) => {
        const [group] = groupRuns(iterations.map((count) => runOf({ iterations: count })))
        const [limit] = group?.limits ?? []
        const over = (max = 0) => iterations.filter((count) => count > max).length / iterations.length
        expect(over(limit?.p95)).toBeLessThanOrEqual(0.05)
        expect(over(limit?.twice)).toBeLessThanOrEqual(over(limit?.p95))
        expect(iterations).toContain(limit?.p95)
      }),
    )
  })

  it('for an agent comes before one for any agent, as the first override that matches counts', () => {
    const text = suggestionText(groupRuns([...runsOf(90, { agent: null }), ...runsOf(30)]), 80)
    const { overrides } = parse(text) as { overrides: { header?: object }[] }
    expect(overrides.map(({ header }) => header)).toEqual([{ 'user-agent': 'codex_cli_rs*' }, undefined])
  })

  it.each([
    'a"b\n  evil: true',
    '\u001b[31mred',
    '\u202egnp.exe',
    '<img onerror=alert(1)>',
    "it's: #1",
    '🙂目录',
    'x'.repeat(200),
  ])('names a model %j in its line and nothing else', (model) => {
    const text = suggestionText(groupRuns(runsOf(30, { model, agent: 'a&*!b' })), 80)
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not be there
    expect(text).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u202e]/)
    const { overrides } = checkConfig(parse(text), 'test')
    expect(overrides).toMatchObject([{ model, header: { 'user-agent': 'a&*!b*' } }])
  })
})
