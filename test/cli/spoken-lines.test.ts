/** What a terminal shows of stops, blocks and questions while Governor runs on it. */
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { createBill, endText, spokenLine } from '../../src/cli/start/bill.ts'
import { REASONS, type TerminalReason, terminalOf } from '../../src/core/terminal.ts'
import { runAgent, START } from '../support/agent.ts'
import { MAIN, startProcess, temporaryFolder } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { freePort, startRedis } from '../support/redis.ts'
import { openPane } from '../support/tmux.ts'

const WORDS: Readonly<Record<TerminalReason, string>> = {
  max_iterations: 'stopped at 60 of 60 iterations, with an answer',
  max_tool_calls: 'stopped at 60 of 60 tool calls, with an answer',
  max_tokens: 'stopped at 60 of 60 tokens, with an answer',
  max_cost: 'stopped at $60.00 of $60.00, with an answer',
  max_seconds: 'stopped at 60s of 60s, with an answer',
  max_runs: 'stopped at 60 of 60 runs, with an answer',
  loop_guard: 'stopped: the agent was in a loop, with an answer',
  max_agents: 'stopped: no more agents may be started, with an answer',
  max_concurrent_agents: 'stopped: too many agents run at once, with an answer',
  max_depth: 'stopped: its agents may start no others, with an answer',
  operator: 'stopped: an operator stopped the run, with an answer',
  paused: 'stopped: an operator has paused the agent, with an answer',
}

describe('the line for the end of a run', () => {
  it.each(Object.keys(REASONS) as TerminalReason[])('says what ended it: %s', (reason) => {
    const limit = { meter: { name: 'iterations', used: 60, max: 60 } as const, reason: 'operator' as const }
    const terminal = { ...terminalOf(limit, 's', true), terminal_reason: reason }
    expect(endText(terminal)).toBe(WORDS[reason])
    expect(endText({ ...terminal, has_final_answer: false })).toMatch(/, without an answer$/)
    if (reason.startsWith('max_cost')) expect(endText({ ...terminal, scope: 'day' })).toContain('$60.00 today, with')
  })

  it('names program and session, and no session whose name is only an id or may be a secret', () => {
    const asked = { kind: 'operator_asked', meter: 'iterations', used: 3, max: 3, seconds: 60, until: 0 } as const
    const line = (session: string, seesNames = true) =>
      spokenLine({ ...asked, client: 'claude-cli', session, apiId: 'id' }, seesNames, (id) => `http://page/#${id}`)
    const what = 'asks: 3 of 3 iterations; extend or stop within 60 s · http://page/#id'
    const labelled = { ...asked, client: 'pi', session: 'ses_e04bfed86fferxG8mGERx3BUGe', label: 'parser' }
    expect(spokenLine(labelled, true, String)).toMatch(/^pi · parser: asks/)
    expect(spokenLine({ ...labelled, session: 'mine' }, true, String)).toMatch(/^pi · mine: asks/)
    expect(spokenLine(labelled, false, String)).toMatch(/^pi: asks/)
    expect(line('fix the parser')).toBe(`claude-cli · fix the parser: ${what}`)
    expect(line('0b6ff2f5-3c1f-4a55-9c5a-1f0d4e6a2b11')).toBe(`claude-cli: ${what}`)
    expect(line('fix the parser', false)).toBe(`claude-cli: ${what}`)
    expect(line('a\u001b[2Jb')).not.toContain('\u001b')
  })

  it('counts in the bill each run once that would have been stopped', () => {
    const bill = createBill()
    const ended = (apiId: string, observed?: 'stop') =>
      bill.record({
        kind: 'request_ended',
        upstream: 'openai',
        dialect: 'chat',
        method: 'POST',
        path: '/',
        status: 200,
        outcome: 'completed',
        totalMs: 1,
        upstreamMs: 1,
        overheadMs: 1,
        failure: undefined,
        failureDetail: undefined,
        apiId,
        observed,
      })
    for (const observed of [undefined, 'stop', 'stop', undefined, 'stop'] as const) ended('one', observed)
    for (const observed of ['stop', 'stop'] as const) ended('two', observed)
    expect(bill.text(true)).toContain('only observed: would have stopped 3')
    expect(bill.text(false)).not.toContain('observed')
  })
})

const LIMITED = [
  ['iterations', { max_iterations: 2 }, 'stopped at 2 of 2 iterations, with an answer'],
  ['tool_calls', { run: { max_tool_calls: 2 } }, 'stopped at 2 of 2 tool calls, with an answer'],
  ['tokens', { run: { max_tokens: 150 } }, 'stopped at 150 of 150 tokens, with an answer'],
  ['cost', { run: { max_cost_usd: 0.1 } }, 'stopped at $0.10 of $0.10, with an answer'],
  ['seconds', { run: { max_seconds: 0.001 } }, 'stopped at'],
  ['loops', {}, 'blocked a repeated call of search'],
] as const

describeWith('tmux', 'governor on a terminal', () => {
  it('names a session by its label, which stands in no log, metric, journal and webhook', async () => {
    const provider = await startProvider(runaway())
    const told: string[] = []
    const listener = createServer((request, response) => {
      request.on('data', (data) => told.push(String(data)))
      request.on('end', () => response.end())
    }).listen(0, '127.0.0.1')
    await once(listener, 'listening')
    onTestFinished(async () => {
      listener.close()
      await provider.close()
    })
    const folder = temporaryFolder()
    const journal = join(folder, 'usage.jsonl')
    const url = `http://127.0.0.1:${(listener.address() as AddressInfo).port}/`
    const config = {
      sessions: { labels: 'folder' },
      budget: { max_iterations: 2 },
      usage: { journal },
      events: { webhook: { url, format: 'slack' } },
    }
    const system = { role: 'system', content: 'Working directory: /home/me/quiet-harbour\n' } as const
    const pane = await openPane(200, 40)
    const port = await freePort()
    const file = join(folder, 'governor.yaml')
    writeFileSync(file, JSON.stringify({ ...config, upstreams: { openai: { url: provider.url } }, server: { port } }))
    await pane.enter(`node ${MAIN} --config ${file}`)
    await pane.shows('Governor listens on')
    await runAgent(`http://127.0.0.1:${port}`, [system, ...START], { max: 4 })
    await pane.shows('node · quiet-harbour: stopped at 2 of 2 iterations')
    const metrics = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()
    await pane.press('C-c')
    await pane.shows(/1 stop\n +node · quiet-harbour: stopped/)
    await expect.poll(() => told.join('')).toContain('stopped')
    const logged = await startProcess(provider.url, { ...config, log: { level: 'debug' } })
    await runAgent(logged.url, [system, ...START], { max: 4 })
    logged.child.kill('SIGTERM')
    await logged.exitCode
    const log = logged.log.join('')
    expect(log).toContain('run ended')
    expect(`${log}${metrics}${told.join('')}${readFileSync(journal, 'utf8')}`).not.toContain('harbour')
  })

  it('prints one line for each stop and block, at every limit, with its program, session and address', async () => {
    const script: Script = ({ json, header }, number) => {
      if (json.tool_choice === 'none' || !json.tools) return { text: 'Enough.' }
      const query = header('x-limit') === 'loops' ? 'the same' : `q${number}`
      return { calls: [{ name: 'search', arguments: { query } }] }
    }
    const provider = await startProvider(script)
    onTestFinished(() => provider.close())
    const overrides = LIMITED.map(([name, budget]) => ({ header: { 'x-limit': name }, budget }))
    const models = [{ model: '*', price: { input: 1_000, output: 0 } }]
    const upstreams = { openai: { url: provider.url }, anthropic: { url: provider.url } }
    const port = await freePort()
    const file = join(temporaryFolder(), 'governor.yaml')
    writeFileSync(file, JSON.stringify({ upstreams, overrides, models, server: { port } }))
    const pane = await openPane(200, 40)
    await pane.enter(`node ${MAIN} --config ${file}`)
    await pane.shows('Governor listens on')
    for (const [name] of LIMITED)
      await runAgent(`http://127.0.0.1:${port}`, START, {
        headers: { 'x-limit': name, 'x-governor-session': `task ${name}` },
        max: 12,
      })
    await pane.shows('task loops: blocked')
    const screen = await pane.screen()
    for (const [name, , words] of LIMITED) {
      const lines = screen.split('\n').filter((line) => line.includes(`node · task ${name}: ${words}`))
      expect(lines.length, `${name}: ${screen}`).toBeGreaterThan(0)
      expect(lines[0]).toMatch(/^\d\d:\d\d node · .* · http:\/\/127\.0\.0\.1:\d+\/governor\/#\S+$/)
      if (name !== 'loops') expect(lines).toHaveLength(1)
    }
    await pane.press('C-c')
    await pane.shows('stopped at 2 of 2 iterations, with an answer\n')
  })

  it('ends with its terminal, so that no Governor that nobody sees keeps the port', async () => {
    const port = await freePort()
    const pane = await openPane()
    await pane.enter(`node ${MAIN} --port ${port}`)
    await pane.shows('Governor listens on')
    await pane.close()
    const answers = () => fetch(`http://127.0.0.1:${port}/health`).then(Boolean, () => false)
    await expect.poll(answers, { timeout: 10_000 }).toBe(false)
  })

  it('gives all its lines one clock, that of the place where it runs', async () => {
    const here = () => new Date().toLocaleTimeString('en-GB', { timeZone: 'Asia/Kathmandu' }).slice(0, 4)
    const began = here()
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const port = await freePort()
    const url = `http://127.0.0.1:${port}`
    const pane = await openPane(200, 40, { TZ: 'Asia/Kathmandu' })
    const upstreams = `--upstream openai=${provider.url} --upstream gone=http://127.0.0.1:1`
    await pane.enter(`node ${MAIN} --port ${port} ${upstreams} --max-iterations 2`)
    await pane.shows('Governor listens on')
    await (await fetch(`${url}/gone/v1/models`)).text()
    await runAgent(url, START, { max: 4, headers: { 'x-governor-session': 'one' } })
    await pane.shows('stopped at 2 of 2')
    const screen = await pane.screen()
    expect(screen).toMatch(/^\S+ request failed: Governor could not get an answer from upstream gone .* refused\./m)
    const times = [...screen.matchAll(/^(\d\d:\d)\d(?::\d\d)? /gm)].map(([, time]) => time)
    expect(times).toHaveLength(2)
    for (const time of times) expect([began, here()]).toContain(time)
    const shell = await openPane(100, 40, { TZ: 'Asia/Kathmandu' })
    await shell.enter(`clear; node ${MAIN} session one --url ${url}`)
    await shell.shows(/^\d\d:\d\d:\d\d #1 +2 /m)
    const since = /since (\d\d:\d)/.exec(await shell.screen())?.[1]
    expect((await shell.screen()).match(/^\d\d:\d(?=\d:\d\d #1)/gm)).toEqual([since, since, since])
  })
})

describeWith('redis-server', 'governor with Redis on a terminal', () => {
  it('says that Redis fails, and that it is in use again', async () => {
    const redis = await startRedis()
    const port = await freePort()
    const pane = await openPane(160, 24, { REDIS_URL: redis.url })
    await pane.enter(`node ${MAIN} --port ${port}`)
    await pane.shows('Governor listens on')
    await redis.kill()
    await pane.shows('store not reached: sessions are kept in memory until it is')
    expect(await pane.screen()).not.toContain('in use again')
    await redis.restart()
    await pane.shows(/^\d\d:\d\d store in use again$/m)
  })
})
