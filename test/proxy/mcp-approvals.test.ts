/** Calls of an MCP server that the provider makes once the client has approved of each of them. */
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'
import { callResponses, type Item, type ResponseStep } from '../support/responses-agent.ts'

const outputOf = ({ response }: ResponseStep) => response['output'] as Item[]
const TOOLS = [{ type: 'mcp', server_label: 'queue', server_url: 'https://queue.example' }]

/** A model that asks to take the next task of a queue until `brought` says nothing; it tells what the call before did. */
const worker =
  (brought: (number: number) => string): Script =>
  ({ json }, number) => {
    if (json.tool_choice === 'none' || !json.tools) return { text: 'That is all.' }
    const call = { server_label: 'queue', name: 'take_next', arguments: '{}' }
    const done = {
      ...call,
      id: `mcp_${number}`,
      type: 'mcp_call',
      approval_request_id: `mcpr_${number - 1}`,
      status: 'completed',
      error: null,
      output: brought(number),
    }
    const request = { ...call, id: `mcpr_${number}`, type: 'mcp_approval_request' }
    return { blocks: number === 1 ? [request] : [done, request] }
  }

/** Runs an agent whose user approves of everything. */
async function run(url: string, max: number, stateful: boolean, stream: boolean) {
  const steps: ResponseStep[] = []
  const history: Item[] = []
  let input: Item[] = [{ role: 'user', content: 'Work through the queue.' }]
  while (steps.length < max) {
    const previous = steps.at(-1)?.response['id']
    const kept = { input, ...(previous === undefined ? {} : { previous_response_id: previous }) }
    const body = stateful ? kept : { input: [...history, ...input], store: false }
    const step = await callResponses(url, { ...body, tools: TOOLS }, { stream })
    steps.push(step)
    history.push(...input, ...outputOf(step))
    const asked = outputOf(step).filter(({ type }) => type === 'mcp_approval_request')
    if (asked.length === 0) break
    input = asked.map(({ id }) => ({ type: 'mcp_approval_response', approval_request_id: id, approve: true }))
  }
  return steps
}

const WAYS = [false, true].flatMap((stateful) =>
  [false, true].map((stream) => ({
    way: `${stateful ? 'kept history' : 'sent history'}, ${stream ? 'a stream' : 'one body'}`,
    stateful,
    stream,
  })),
)

describe('equal calls that a client approves of one by one', () => {
  it.each(WAYS)('are work if each brings something else: $way', async ({ stateful, stream }) => {
    const { url } = await startBoth(worker((number) => `Task ${number}: there is more to do.`))
    const steps = await run(url, 20, stateful, stream)
    expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(steps.map(() => 'allow'))
    expect(steps.length).toBe(20)
  })

  it.each(WAYS)('are a loop if all bring the same, which ends with an answer: $way', async ({ stateful, stream }) => {
    const { url } = await startBoth(worker(() => 'Error: the queue can not be reached.'))
    const steps = await run(url, 20, stateful, stream)
    const last = steps.at(-1)
    expect(last?.response['governor']).toMatchObject({ terminal_state: 'loop_detected', has_final_answer: true })
    expect(last?.text).toBe('That is all.')
    expect(steps.length).toBe(12)
  })
})
