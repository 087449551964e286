/** What costs a session, by agent, model and tool: in the API, the journal and the report, in every way to hold a conversation. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { report } from '../../src/cli/journal/report.ts'
import type { JournalLine } from '../../src/telemetry/journal.ts'
import { firstSession } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { ASKED, runMessagesAgent } from '../support/messages.ts'
import { temporaryFolder } from '../support/process.ts'
import { completion, type Script } from '../support/provider.ts'
import { runResponses } from '../support/responses-agent.ts'
import { captureTerminal } from '../support/terminal.ts'

const models = [{ model: '*', price: { input: 1_000, output: 10_000 } }]
const headers = { 'x-governor-session': 'job', 'user-agent': 'my-agent/1' }

const results = (messages: readonly { role: string }[]) => messages.filter(({ role }) => role === 'tool').length

/** Reads and searches by turns, then answers. */
const script: Script = ({ json }) => {
  const made = results(json.messages ?? [])
  if (made >= 6) return { text: 'Done.' }
  return { calls: [{ name: made % 2 === 0 ? 'read_file' : 'search', arguments: { at: made } }] }
}

const inputOf = (list: readonly { readonly input: number }[]) => list.reduce((sum, { input }) => sum + input, 0)

describe('what costs a session', () => {
  it('is in the API, the journal and the report: first the tool whose results cost most, and all adds up', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const { url, governor } = await startBoth(script, { models, usage: { journal }, loop_guard: { enabled: false } })
    // The result of read_file is 40 times as long.
    let messages = [...START]
    for (let at = 0; at < 7; at++) {
      const { message } = await callModel(url, messages, { headers })
      messages = [...messages, message]
      for (const call of message.tool_calls ?? []) {
        const content = call.function.name === 'read_file' ? 'line of a file\n'.repeat(200) : `found ${at}\n`.repeat(10)
        messages.push({ role: 'tool', tool_call_id: call.id, content })
      }
    }
    await runAgent(url, START, { headers: { ...headers, 'x-claude-code-agent-id': 'helper' }, max: 1 })
    await expect.poll(async () => (await firstSession(url)).costs.agents.length, { timeout: 20_000 }).toBe(2)
    const { costs, tokens, cost_usd } = await firstSession(url)
    expect(costs.tools.map(({ tool }) => tool)).toEqual(['read_file', 'search', null])
    const [read, search] = costs.tools
    expect(read?.share).toBeGreaterThan(0.5)
    expect((read?.input ?? 0) / (search?.input ?? 1)).toBeGreaterThan(10)
    expect(read?.cost_usd).toBeCloseTo((read?.input ?? 0) / 1_000, 0)
    const all = costs.agents.reduce((sum, { input, output }) => sum + input + output, 0)
    expect(all).toBe(tokens)
    for (const list of [costs.agents, costs.models, costs.tools]) expect(inputOf(list)).toBe(inputOf(costs.agents))
    const dollars = costs.tools.reduce((sum, one) => sum + (one.cost_usd ?? 0), 0)
    expect(dollars).toBeCloseTo(cost_usd ?? 0, 4)
    expect(costs.models.map(({ model }) => model)).toEqual(['gpt-test'])
    await governor.close()
    const lines = readFileSync(journal, 'utf8')
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as JournalLine)
    const inJournal = lines.flatMap(({ tools }) => tools).filter(({ tool }) => tool === 'read_file')
    expect(inputOf(inJournal)).toBe(read?.input)
    const terminal = captureTerminal()
    await report({ args: [], flags: { journal, by: 'tool', json: true } }, terminal)
    const rows = terminal.printed
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(rows.map(({ tool }) => tool)).toEqual(['read_file', 'search', '(no tool)'])
    expect(inputOf(rows)).toBe(inputOf(costs.tools))
  })

  it.each(['sends its history', 'continues from responses'] as const)(
    'counts results of Responses for their tool where the client %s',
    async (how) => {
      let made = 0
      const { url } = await startBoth(
        () => (made++ < 5 ? { calls: [{ name: 'fetch_page', arguments: { at: made } }] } : { text: 'Done.' }),
        { models },
      )
      const result = ({ call_id }: { readonly call_id?: unknown }) => `${String(call_id)} `.repeat(300)
      await runResponses(url, 'Go.', { stateful: how !== 'sends its history', headers, result })
      const { costs } = await firstSession(url)
      expect(costs.tools.map(({ tool }) => tool)).toEqual(['fetch_page', null])
      expect(costs.tools[0]?.share).toBeGreaterThan(0.5)
      expect(inputOf(costs.tools)).toBe(inputOf(costs.agents))
    },
  )

  it('counts results of Messages for the tool of their call, of several in one message too', async () => {
    const { url } = await startBoth(
      ({ json }) => {
        const { length } = json.messages
        if (length > 6) return { text: 'Done.' }
        return {
          calls: [
            { name: 'Read', arguments: { at: length } },
            { name: 'Bash', arguments: { at: length } },
          ],
        }
      },
      { models },
    )
    await runMessagesAgent(url, ASKED, { headers })
    const { costs } = await firstSession(url)
    expect(costs.tools.map(({ tool }) => tool).toSorted()).toEqual(['Bash', 'Read', null].toSorted())
    expect(inputOf(costs.tools)).toBe(inputOf(costs.agents))
  })

  it.each([
    ['a total alone', { total_tokens: 500 }],
    ['no tokens of the prompt', { prompt_tokens: 0, completion_tokens: 500, total_tokens: 500 }],
  ])('counts each answer once in a session without an id where its provider states %s', async (_, usage) => {
    const calling: Script = ({ json }, number) => {
      const answer = { calls: [{ name: 'search', arguments: { at: number } }] }
      return { body: { ...completion(json, answer, number), usage } }
    }
    const { url, until } = await startBoth(calling)
    await runAgent(url, START, { max: 3 })
    await until((event) => event.kind === 'answered' && event.iteration === 3)
    await expect.poll(async () => (await firstSession(url)).iterations.length).toBe(3)
    expect((await firstSession(url)).tokens).toBe(1_500)
  })
})
