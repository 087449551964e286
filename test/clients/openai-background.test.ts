import type OpenAI from 'openai'
import { describe, expect, it } from 'vitest'
import { startBackground } from '../support/background.ts'
import { startGovernor } from '../support/governor.ts'
import type { Received, Script } from '../support/provider.ts'
import { mayCall, readsBlock } from '../support/scripts.ts'
import { OPENAI_CLIENTS } from '../support/versions.ts'

type Governed = OpenAI.Responses.Response & { readonly governor?: object }

const tools = [
  {
    type: 'function' as const,
    name: 'read_file',
    strict: false,
    parameters: { type: 'object', properties: { path: { type: 'string' } } },
  },
]

/** How a client gets an answer that is made in the background. */
type Fetch = (client: OpenAI, begun: Governed) => Promise<Governed>

async function retrieve(client: OpenAI, begun: Governed): Promise<Governed> {
  let response = begun
  while (response.status === 'queued' || response.status === 'in_progress')
    response = await client.responses.retrieve(response.id)
  return response
}

async function stream(client: OpenAI, begun: Governed): Promise<Governed> {
  if (begun.status === 'completed') return begun
  let response = begun
  for await (const event of await client.responses.retrieve(begun.id, { stream: true, starting_after: 1 }))
    if (event.type === 'response.completed') response = event.response
  return response
}

const FETCHES: readonly [string, Fetch][] = [
  ['retrieve', retrieve],
  ['retrieve a stream', stream],
]

const HOWS = OPENAI_CLIENTS.flatMap((client) => FETCHES.map(([how, fetch]) => ({ ...client, how, fetch })))

/** A model that reads a missing file again and again, as long as `isStuck`. */
const readsAgain =
  (isStuck: (request: Received) => boolean): Script =>
  (request) =>
    isStuck(request)
      ? { reasoning: 'x', calls: [{ name: 'read_file', arguments: { path: 'gone.txt' } }] }
      : { text: 'The file does not exist.' }

describe.each(HOWS)('$name with background, by $how', ({ OpenAI: Client, fetch }) => {
  /** Runs an agent whose calls all fail. */
  async function run(script: Script, config = {}) {
    const provider = await startBackground(script, { states: () => ['queued', 'in_progress'] })
    const { url, events } = await startGovernor(provider.url, config)
    const client = new Client({ apiKey: 'sk-test', baseURL: `${url}/v1`, maxRetries: 0 })
    let input: OpenAI.Responses.ResponseInput = [{ role: 'user', content: 'What is in the file?' }]
    let previous = {}
    for (let calls = 1; ; calls++) {
      const asked = { model: 'gpt-test', tools, input, ...previous }
      const response = await fetch(client, await client.responses.create({ ...asked, background: true }))
      previous = { previous_response_id: response.id }
      input = response.output.flatMap((item) =>
        item.type === 'function_call'
          ? [{ type: 'function_call_output' as const, call_id: item.call_id, output: 'ENOENT: no such file' }]
          : [],
      )
      if (input.length === 0 || calls === 30) return { answer: response.output_text, calls, response, events, provider }
    }
  }

  it('is warned, and goes on with the next answer of the model when its calls are blocked', async () => {
    const { answer, calls, events, provider } = await run(readsAgain((request) => !readsBlock(request)))
    expect([answer, calls]).toEqual(['The file does not exist.', 7])
    expect(events.map(({ kind }) => kind)).toEqual(expect.arrayContaining(['notice', 'loop', 'call_blocked']))
    expect(provider.posts.filter(({ json }) => json['background'] === true)).toHaveLength(6)
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('is stopped with an honest end if the model makes the call again and again', async () => {
    const { response, calls, answer } = await run(readsAgain(mayCall))
    expect(response).toMatchObject({ status: 'completed', governor: { terminal_reason: 'loop_guard' } })
    expect([answer, calls]).toEqual([expect.stringContaining('The file does not exist.'), 7])
  })

  it('is stopped at the limit of its run', async () => {
    const script: Script = (request, number) =>
      mayCall(request) ? { calls: [{ name: 'read_file', arguments: { path: `${number}` } }] } : { text: 'None exists.' }
    const { response, calls, answer } = await run(script, { budget: { max_iterations: 5 } })
    expect(response).toMatchObject({ governor: { terminal_state: 'tool_limit_reached', has_final_answer: true } })
    expect([answer, calls]).toEqual([expect.stringContaining('None exists.'), 6])
  })
})
