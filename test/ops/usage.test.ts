/** What agents used, out of the journal, over the API. */
import { appendFileSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import type { UsageView } from '../../src/ops/usage.ts'
import { usageReply } from '../../src/ops/usage.ts'
import { ask } from '../support/admin.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { temporaryFolder } from '../support/process.ts'
import { runaway } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

const models = [{ model: '*', price: { input: 90, output: 100 } }]
const NOW = Date.parse('2026-11-27T12:00:00Z')
const line = (more: object) =>
  `${JSON.stringify({ time: '2026-11-20T10:00:00Z', runs: 1, price_known: true, ...more })}\n`

/** A Governor with this text in its journal. */
async function startWith(text: string, config: object = {}, now = () => NOW) {
  const journal = join(temporaryFolder(), 'usage.jsonl')
  writeFileSync(journal, text)
  return { ...(await startBoth(runaway(), { usage: { journal }, models, ...config }, { now })), journal }
}

async function usage(url: string, query = '', headers = {}): Promise<UsageView> {
  const { status, json } = await ask(url, `/governor/usage${query}`, { headers })
  expect(status).toBe(200)
  return usageReply.parse(json)
}

describe('GET /governor/usage', () => {
  it('adds up any lines so that groups, others and days each make the total, whatever they are grouped by', async () => {
    const amount = fc.oneof(fc.nat(1e6), fc.constantFrom(-1, null, 'x', undefined))
    const name = fc.constantFrom('a', 'b', '__proto__', 'constructor', '', null, 3)
    const entry = fc.record({
      time: fc.integer({ min: 0, max: 40 * 24 }).map((hours) => new Date(NOW - hours * 3_600_000).toISOString()),
      ...{ model: name, client: name, key: name, session: fc.oneof(name, fc.nat(400).map(String)) },
      ...{ runs: amount, iterations: amount, input: amount, output: amount },
      cost_usd: fc.oneof(fc.double({ min: 0, max: 9, noNaN: true }), fc.constant(null)),
      tools: fc.oneof(amount, fc.array(fc.record({ tool: name, input: amount, cost_usd: amount }), { maxLength: 3 })),
      price_known: fc.boolean(),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(entry, { maxLength: 300 }), async (entries) => {
        const cut = '{"time": "2026-11-2'
        const { url, governor } = await startWith(entries.map(line).join('') + cut)
        for (const by of ['day', 'model', 'client', 'key', 'session', 'tool']) {
          const { usage: rows, others, days, total } = await usage(url, `?by=${by}&since=20d`)
          const parts = [...rows, ...(others ? [others] : [])]
          for (const field of ['runs', 'iterations', 'input', 'output', 'cost_usd'] as const) {
            const sum = (of: readonly (typeof total)[]) => of.reduce((so, one) => so + one[field], 0)
            expect(sum(parts)).toBeCloseTo(total[field], 4)
            expect(sum(days)).toBeCloseTo(total[field], 4)
          }
          const split = rows.flatMap((one) => one.days).reduce((so, { tokens }) => so + tokens, 0)
          const rest = others ? others.input + others.output : 0
          expect(split + rest).toBe(total.input + total.output)
          expect(parts.every((one) => one.price_known)).toBe(total.price_known)
          expect(rows.length).toBeLessThanOrEqual(100)
        }
        const counted = entries.filter(({ time }) => Date.parse(time) >= NOW - 20 * 86_400_000)
        const runs = counted.reduce((so, one) => so + (typeof one.runs === 'number' && one.runs > 0 ? one.runs : 0), 0)
        expect((await usage(url, '?since=20d')).total.runs).toBe(runs)
        await governor.close()
      }),
      { numRuns: 12 },
    )
  })

  it('counts what a run under way has used so far, once', async () => {
    const { url, governor, journal } = await startWith(line({ model: 'old', cost_usd: 1 }))
    await runAgent(url, START, { max: 3, body: { model: 'new' } })
    const found = await usage(url, '?by=model')
    expect(found.usage).toMatchObject([
      { model: 'old', runs: 1, cost_usd: 1, days: [{ day: '2026-11-20', cost_usd: 1 }] },
      { model: 'new', runs: 1, iterations: 3, input: 300, cost_usd: 0.03 },
    ])
    await governor.close()
    expect(readFileSync(journal, 'utf8')).toContain('"new"')
    const again = await startBoth(runaway(), { usage: { journal } }, { now: () => NOW })
    expect((await usage(again.url, '?by=model')).usage).toEqual(found.usage)
  })

  it('says by tool whose results cost most, and all else in a row at the end', async () => {
    const read = { tool: 'Read', input: 600, cost_usd: 0.6 }
    const { url } = await startWith(
      line({ input: 1_000, output: 10, cost_usd: 1.5, tools: [{ tool: 'Bash', input: 200, cost_usd: 0.2 }, read] }) +
        line({ time: '2026-11-21T10:00:00Z', input: 700, cost_usd: 0.7, tools: [read] }),
    )
    const { by, usage: rows, days, total } = await usage(url, '?by=tool')
    expect(by).toBe('tool')
    expect(rows).toMatchObject([
      { tool: 'Read', input: 1_200, cost_usd: 1.2, days: [{ day: '2026-11-20', cost_usd: 0.6 }, { cost_usd: 0.6 }] },
      { tool: 'Bash', input: 200, cost_usd: 0.2 },
      { tool: '(no tool)', runs: 2, input: 300, output: 10, cost_usd: 0.8 },
    ])
    expect(days).toMatchObject([{ input: 1_000 }, { input: 700 }])
    expect(total).toMatchObject({ runs: 2, input: 1_700, cost_usd: 2.2 })
  })

  it.each(['session', 'tool'])('by %s is the same CSV file as that of governor report', async (by) => {
    const tools = [{ tool: 'Read', input: 2, cost_usd: 0.05 }]
    const text = line({ session: '=evil()', cost_usd: 0.1, input: 3, tools }) + line({ session: 'a,b', cost_usd: 0.2 })
    const { url, journal } = await startWith(text)
    const { headers, text: csv } = await ask(url, `/governor/usage?by=${by}&since=2026-11-01&format=csv`)
    expect(headers['content-type']).toContain('text/csv')
    const terminal = captureTerminal()
    await run(['report', '--by', by, '--csv', '--since', '2026-11-01', '--journal', journal], terminal)
    expect(csv).toBe(terminal.printed)
    expect(csv).toContain(by === 'tool' ? '\nRead,0,' : "\n'=evil(),1,")
  })

  it('states dollars without the noise of adding fractions, in each form and in that of governor report', async () => {
    const { url, journal } = await startWith([0.1, 0.2].map((cost) => line({ model: 'm', cost_usd: cost })).join(''))
    const json = await usage(url, '?by=model')
    expect([json.total.cost_usd, json.usage[0]?.cost_usd, json.usage[0]?.days[0]?.cost_usd]).toEqual([0.3, 0.3, 0.3])
    const { text } = await ask(url, '/governor/usage?format=csv')
    expect(text).toContain(',0.3,true\n')
    for (const form of ['--csv', '--json']) {
      const terminal = captureTerminal()
      await run(['report', form, '--journal', journal], terminal)
      expect(terminal.printed).toMatch(/\b0\.3[,}]/)
    }
  })

  it('names the dearest hundred of 40,000 sessions, and adds the others up', async () => {
    const lines = Array.from({ length: 40_000 }, (_, at) => line({ session: `s${at}`, cost_usd: at, input: 1 }))
    const { url } = await startWith(lines.join(''))
    const { usage: rows, others, total } = await usage(url, '?by=session')
    expect([rows.length, rows[0]?.session, others?.groups]).toEqual([100, 's39999', 39_900])
    expect(total.input).toBe(40_000)
    const { text } = await ask(url, '/governor/usage?by=session&format=csv')
    expect(text.trimEnd().split('\n')).toHaveLength(40_001)
  })

  it('shows the names that clients gave their sessions only to those who may see them', async () => {
    const ops = { admin_token: 'secret', names: 'token' }
    const { url } = await startWith(line({ session: 'my secret', id: 'sabc' }), { ops })
    expect((await usage(url, '?by=session')).usage.map(({ session }) => session)).toEqual(['sabc'])
    const seen = await usage(url, '?by=session', { authorization: 'Bearer secret' })
    expect(seen.usage.map(({ session }) => session)).toEqual(['my secret'])
  })

  it('is closed to all who may not read sessions', async () => {
    const { url } = await startWith('', { ops: { admin_token: 'secret', trust_loopback: false } })
    expect((await ask(url, '/governor/usage')).status).toBe(401)
  })

  it('is empty before anything was used, and says how to keep a journal where there is none', async () => {
    const { url } = await startWith('')
    expect(await usage(url)).toMatchObject({ usage: [], days: [], others: null, total: { runs: 0, cost_usd: 0 } })
    const off = await startBoth(runaway())
    const { status, json } = await ask(off.url, '/governor/usage')
    expect(status).toBe(404)
    expect(json).toMatchObject({ error: { code: 'journal_off', message: expect.stringContaining('--journal FILE') } })
  })

  it.each([
    ['?by=moon', 'by'],
    ['?since=30.2.', 'since'],
    ['?since=2026-02-30', 'since'],
    ['?format=pdf', 'format'],
  ])('refuses %s and says why', async (query, why) => {
    const { url } = await startWith('')
    const { status, text } = await ask(url, `/governor/usage${query}`)
    expect([status, text.includes(`query: ${why}`)]).toEqual([400, true])
  })

  it('says so where the journal can not be read, and shows it once it can be', async () => {
    const time = { now: NOW }
    const { url, journal } = await startWith(line({}), {}, () => time.now)
    mkdirSync(`${journal}.2`)
    const { status, json } = await ask(url, '/governor/usage')
    expect([status, json]).toMatchObject([409, { error: { code: 'journal_unreadable' } }])
    appendFileSync(journal, line({}))
    rmdirSync(`${journal}.2`)
    expect((await usage(url)).total.runs).toBe(2)
  })
})
