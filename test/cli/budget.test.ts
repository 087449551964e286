import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, vi } from 'vitest'
import { parse } from 'yaml'
import { run } from '../../src/cli/cli.ts'
import { checkConfig } from '../../src/config/load.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { startProcess, temporaryFolder } from '../support/process.ts'
import { runaway, startProvider } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

const NOON = Date.parse('2026-11-27T12:00:00Z')

async function called(url: string, ...args: readonly string[]) {
  const terminal = captureTerminal()
  const code = await run([...args, '--url', url], terminal)
  return { code, printed: terminal.printed, complaints: terminal.complaints }
}

const post = async (url: string, content: string, headers = {}) => {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer sk-1', ...headers },
    body: JSON.stringify({ model: 'gpt-test', messages: [{ role: 'user', content }] }),
  })
  return ((await response.json()) as { governor?: object }).governor
}

describe('governor budget', () => {
  it('shows what is used of each limit, and sets one until it begins anew', async () => {
    const models = [{ model: '*', price: { input: 90, output: 100 } }]
    const budget = { time_zone: 'UTC', day: [{ max_cost_usd: 0.2 }, { per: 'model', max_iterations: 4 }] }
    const { url } = await startBoth(() => ({ text: 'Yes.' }), { models, budget }, { now: () => NOON })
    await post(url, 'one')
    const { code, printed } = await called(url, 'budget')
    expect(code).toBe(0)
    expect(printed).toMatch(/^day +all +5% +\$0\.01 of \$0\.20, until 2026-11-2\d \d\d:00$/m)
    expect(printed).toMatch(/^day +model gpt-test +25% +1 of 4 iterations, until /m)
    // Names take no more room than they need: the end of a line says until when the limit holds.
    expect(printed).toMatch(/^day +all {12} +5% /m)
    expect((await called(url, 'budget', 'day', '$30')).printed).toMatch(/^day +all +0% +\$0\.01 of \$30\.00/)
    const rows = (await called(url, 'budget', '--json')).printed.trimEnd().split('\n')
    expect(rows.map((row) => JSON.parse(row))).toMatchObject([
      { scope: 'day', per: 'all', subject: null, max: { cost_usd: 30 } },
      { scope: 'day', per: 'model', subject: 'gpt-test', used: { iterations: 1 } },
    ])
  })

  it('shows an amount as the list of sessions does, also below a cent', async () => {
    const models = [{ model: '*', price: { input: 81, output: 90 } }]
    const budget = { day: { max_cost_usd: 2 }, max_iterations: 0 }
    const { url } = await startBoth(runaway(), { models, budget })
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' }, max: 1 })
    for (const command of ['budget', 'session one'])
      expect((await called(url, ...command.split(' '))).printed).toContain('$0.0090 of $2.00')
  })

  it('sets the limit that it shows for a subject, where others have subjects, too', async () => {
    const day = [{ max_cost_usd: 20 }, { per: 'model', max_cost_usd: 2 }, { per: 'header:x-team', max_cost_usd: 3 }]
    const { url } = await startBoth(() => ({ text: 'Yes.' }), { budget: { day } })
    await post(url, 'one', { 'x-team': 'red' })
    expect((await called(url, 'budget', 'day', '8', 'gpt-test')).printed).toMatch(/^day +model gpt-test .* of \$8\.00,/)
    expect((await called(url, 'budget', 'day', '9', 'red')).printed).toMatch(/^day +x-team red .* of \$9\.00,/)
    await post(url, 'none')
    expect((await called(url, 'budget')).printed).toMatch(/^day +x-team without a value /m)
    await post(url, 'two', { 'x-team': 'gpt-test' })
    for (const subject of ['gpt-test', 'unseen'])
      expect(await called(url, 'budget', 'day', '8', subject)).toMatchObject({
        code: 1,
        complaints: expect.stringMatching(
          /^governor: Several limits fit: give per \(day per model, day per header:x-team\)/,
        ),
      })
  })

  it('says that nobody of a name has used anything, and who has, and sets its limit all the same', async () => {
    const day = [{ max_runs: 9 }, { per: 'header:x-team', max_runs: 3 }]
    const { url } = await startBoth(() => ({ text: 'Yes.' }), { budget: { day } })
    const first = await called(url, 'budget', 'day', 'runs=8', 'red')
    expect(first).toMatchObject({ code: 0, complaints: 'governor: x-team red has used nothing so far\n' })
    for (const team of ['blue', 'x\u00ady', 'green']) await post(url, team, { 'x-team': team })
    const { code, printed, complaints } = await called(url, 'budget', 'day', 'runs=8', 'greeen', '--json')
    expect([code, JSON.parse(printed)]).toMatchObject([0, { subject: 'greeen', max: { runs: 8 } }])
    expect(complaints).toMatch(
      /^governor: x-team greeen has used nothing so far: did you mean green\? There are [^\n]+\n$/,
    )
    for (const team of ['red', 'blue', 'x·y', 'green']) expect(complaints).toMatch(new RegExp(`[ ,]${team}[,\n]`))
    for (const known of ['green', 'greeen'])
      expect((await called(url, 'budget', 'day', 'runs=9', known)).complaints).toBe('')
  })

  it('sets limits of any meter, and says where there is none left', async () => {
    const day = { max_cost_usd: 1, max_tokens: 100, max_iterations: 9 }
    const { url } = await startBoth(() => ({ text: 'Yes.' }), { budget: { day } })
    expect((await called(url, 'budget', 'day', 'tokens=5M')).printed).toMatch(
      /^day +all +0% +0 of 9 iterations, until .*\d\d:\d\d\n +0 of 5\.0M tokens\n +\$0\.00 of \$1\.00\n$/,
    )
    expect((await called(url, 'budget', 'day', 'iterations=0')).printed).toMatch(/0% +0 of 5\.0M tokens, until /)
    await called(url, 'budget', 'day', 'tokens=0')
    expect((await called(url, 'budget', 'day', '0')).printed).toMatch(/^day +all +0% +no limit, until /)
    for (const wrong of ['tokens=', 'tokens=many', 'seconds=5', 'runs=1.5'])
      expect((await called(url, 'budget', 'day', wrong)).code).toBe(2)
  })

  it('says in one line what is wrong', async () => {
    const { url } = await startBoth(() => ({ text: 'Yes.' }))
    expect((await called(url, 'budget')).printed).toMatch(/^no limits of an hour/)
    expect(await called(url, 'budget', 'day', '30')).toMatchObject({
      code: 1,
      complaints: 'governor: There is no limit to change: start Governor with one, such as --max-cost-per-day 20.\n',
    })
    expect(await called(url, 'budget', 'year', '30')).toMatchObject({
      code: 2,
      complaints: expect.stringMatching(/expected one of hour, day/),
    })
    expect(await called(url, 'budget', 'day')).toMatchObject({
      code: 2,
      complaints: expect.stringMatching(/needs dollars, such as 30, or tokens=5M/),
    })
  })
})

describe('governor suggest', () => {
  it('suggests a limit of a day out of the journal, with what it would have ended', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const { url } = await startBoth(() => ({ text: 'Yes.' }))
    const lineOf = (day: number, id: string, cost_usd: number) =>
      JSON.stringify({ time: `2026-11-${10 + day}T12:00:00Z`, id, cost_usd, price_known: true })
    const lines: string[] = []
    for (let day = 0; day < 8; day++) lines.push(lineOf(day, `a${day}`, 1 + day), lineOf(day, `b${day}`, 1))
    writeFileSync(journal, `${lines.slice(0, 12).join('\n')}\n`)
    expect((await called(url, 'suggest', '--journal', journal)).printed).not.toContain('budget:')
    writeFileSync(journal, `${lines.join('\n')}\n${lineOf(7, 'c', 5)}\n`)
    const { printed } = await called(url, 'suggest', '--journal', journal)
    expect(checkConfig(parse(printed), 'test').budget.day).toMatchObject({ max_cost_usd: 28 })
    expect(printed).toMatch(/max_cost_usd: 28 +# 0 sessions in 8 days; p95 14: 0\n/)
  })
})

describe('sums of limits', () => {
  it('survive the kill of a Governor once they are written', async () => {
    const provider = await startProvider(() => ({ text: 'Yes.' }))
    const folder = temporaryFolder()
    const config = { budget: { month: { max_iterations: 1 } }, usage: { journal: join(folder, 'usage.jsonl') } }
    const first = await startProcess(provider.url, config)
    expect(await post(first.url, 'one')).toBeUndefined()
    const state = join(folder, 'usage.state')
    await vi.waitFor(() => {
      expect(existsSync(state) && readFileSync(state, 'utf8')).toContain('"iterations":1')
    }, 20_000)
    first.child.kill('SIGKILL')
    await first.exitCode
    const second = await startProcess(provider.url, config)
    expect(await post(second.url, 'two')).toMatchObject({ terminal_reason: 'max_iterations', scope: 'month' })
    await provider.close()
  })
})
