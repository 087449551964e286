/** Calls that the provider makes and answers itself, in the responses of agents that make calls of their own. */
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'
import { callResponses, type Item, type ResponseStep } from '../support/responses-agent.ts'

const OUTPUT = [{ stdout: 'data.csv', stderr: '', outcome: { type: 'exit', exit_code: 0 } }]

function shell(number: number, environment?: object): Item[] {
  const call = { call_id: `call_shell_${number}`, status: 'completed' }
  const action = { commands: ['ls'], timeout_ms: null, max_output_length: null }
  return [
    { id: `sh_${number}`, type: 'shell_call', ...call, action, ...(environment ? { environment } : {}) },
    { id: `sho_${number}`, type: 'shell_call_output', ...call, output: OUTPUT },
  ]
}

const search = { name: 'x_keyword_search', status: 'completed' }
const query = '{"query":"the same"}'

/** What providers put into a response, as they document it and SDKs read it. */
const HOSTED: readonly (readonly [provider: string, items: (number: number) => Item[]])[] = [
  ["OpenAI's shell", (number) => shell(number, { type: 'container_reference', container_id: 'cntr_1' })],
  ["OpenRouter's shell", (number) => shell(number)],
  ["xAI's search", (at) => [{ ...search, id: `fc_${at}_x`, type: 'x_search_call', call_id: '', arguments: query }]],
  [
    "xAI's search in the form of a custom tool",
    (at) => [{ ...search, id: `ctc_${at}`, type: 'custom_tool_call', call_id: `xs_call-${at}-0`, input: query }],
  ],
  [
    "OpenAI's program",
    (at) => [
      { id: `prog_${at}`, type: 'program', call_id: `call_p_${at}`, code: 'text(1)', fingerprint: 'x' },
      { id: `po_${at}`, type: 'program_output', call_id: `call_p_${at}`, result: '1', status: 'completed' },
    ],
  ],
]

const outputOf = ({ response }: ResponseStep) => response['output'] as Item[]
const ownCalls = (step: ResponseStep) => step.calls.filter(({ type }) => type === 'function_call')

/** Runs an agent that makes its function calls, and leaves those of the provider alone. */
async function run(url: string, max: number, stateful: boolean, stream: boolean, result: (step: number) => string) {
  const steps: ResponseStep[] = []
  const history: Item[] = []
  let input: Item[] = [{ role: 'user', content: 'Find out everything.' }]
  while (steps.length < max) {
    const previous = steps.at(-1)?.response['id']
    const body = stateful
      ? { input, ...(previous === undefined ? {} : { previous_response_id: previous }) }
      : { input: [...history, ...input], store: false }
    const step = await callResponses(url, body, { stream })
    steps.push(step)
    history.push(...input, ...outputOf(step))
    const calls = ownCalls(step)
    if (calls.length === 0) break
    const output = result(steps.length)
    input = calls.map((call) => ({ type: 'function_call_output', call_id: call['call_id'], output }))
  }
  return steps
}

/** A model that makes one call after another beside those of its provider, which answers with words as well. */
const model =
  (items: (number: number) => Item[], queryAt: (number: number) => string): Script =>
  ({ json }, number) => ({
    blocks: items(number),
    ...(json.tool_choice === 'none' || !json.tools
      ? { text: 'That is all.' }
      : { calls: [{ name: 'search', arguments: { query: queryAt(number) } }] }),
  })

const WAYS = HOSTED.flatMap(([name, items]) =>
  [false, true].flatMap((stateful) =>
    [false, true].map((stream) => ({
      way: `${name}, ${stateful ? 'kept history' : 'sent history'}, ${stream ? 'a stream' : 'one body'}`,
      items,
      stateful,
      stream,
    })),
  ),
)

describe('beside calls that the provider makes itself', () => {
  it.each(WAYS)('a loop of the client ends with an answer: $way', async ({ items, stateful, stream }) => {
    const { url } = await startBoth(model(items, () => 'the same'))
    const steps = await run(url, 20, stateful, stream, () => 'Error: no connection.')
    const last = steps.at(-1)
    expect(last?.text).toBe('That is all.')
    expect(last?.response['governor']).toMatchObject({ terminal_state: 'loop_detected', has_final_answer: true })
    expect(steps.length).toBe(7)
  })

  it.each(WAYS)('an agent that makes progress is left alone: $way', async ({ items, stateful, stream }) => {
    const { url } = await startBoth(model(items, (number) => `part ${number}`))
    const steps = await run(url, 12, stateful, stream, (step) => `Result ${step}: something else each time.`)
    expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(steps.map(() => 'allow'))
    const iterations = steps.map(({ headers }) => headers.get('x-governor-iteration'))
    expect(iterations).toEqual(steps.map((_, at) => `${at + 1}/300`))
  })

  it.each(WAYS)('the last answer holds no output without its call: $way', async ({ items, stateful, stream }) => {
    const { url } = await startBoth(
      model(items, (number) => `part ${number}`),
      { budget: { max_iterations: 3 } },
    )
    const steps = await run(url, 6, stateful, stream, (step) => `Result ${step}`)
    const last = steps.at(-1)
    expect(last?.response['governor']).toMatchObject({ terminal_state: 'tool_limit_reached', has_final_answer: true })
    const made = new Set(
      last && outputOf(last).flatMap(({ type, call_id }) => (/_output$/.test(`${type}`) ? [] : call_id)),
    )
    const outputs = last ? outputOf(last).filter(({ type }) => /_output$/.test(`${type}`)) : []
    expect(outputs.filter(({ call_id }) => !made.has(call_id))).toEqual([])
    expect(steps.length).toBe(4)
  })
})
