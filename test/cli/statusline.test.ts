/** `governor statusline`: what the status line of Claude Code shows. */
import { expect, it, onTestFinished } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway, serve } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

/** Runs the command with what Claude Code gives it; returns what it prints. */
async function line(given: unknown, args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const terminal = captureTerminal({
    env,
    async *input() {
      yield Buffer.from(typeof given === 'string' ? given : JSON.stringify(given))
    },
  })
  expect(await run(['statusline', ...args], terminal)).toBe(0)
  expect(terminal.complaints).toBe('')
  return terminal.printed
}

const given = { session_id: 'one', model: { display_name: 'Opus' }, cost: { total_cost_usd: 1 } }

it('prints cost, iterations and loop of the session, of the Governor that Claude Code uses or that is named', async () => {
  const models = [{ model: '*', price: { input: 1_000, output: 0 } }]
  const { url } = await startBoth(runaway(), { budget: { max_iterations: 60, run: { max_cost_usd: 2 } }, models })
  await runAgent(url, START, { headers: { 'x-governor-session': 'one' }, max: 4 })
  const words = '$0.40 of $2 · 4/60 · no loop\n'
  const patient = { timeout: 20_000 }
  // It prints nothing where this machine is too busy to answer in time.
  await expect.poll(() => line(given, ['--url', url]), patient).toBe(words)
  await expect.poll(() => line(given, [], { ANTHROPIC_BASE_URL: `${url}/` }), patient).toBe(words)
})

it('prints nothing without a Governor, for an unknown session, for one that is silent, another server, and other input', async () => {
  const { url } = await startBoth(runaway())
  const silent = await serve(() => {})
  const other = await serve((_, response) => response.end('{"status":"ok"}'))
  for (const server of [silent, other]) onTestFinished(() => server.close())
  expect(await line(given, ['--url', url])).toBe('')
  expect(await line(given, ['--url', silent.url])).toBe('')
  expect(await line(given, ['--url', other.url])).toBe('')
  expect(await line(given, ['--url', 'http://127.0.0.1:1'])).toBe('')
  for (const other of ['', 'no JSON', '[]', { session_id: 7 }]) expect(await line(other, ['--url', url])).toBe('')
})
