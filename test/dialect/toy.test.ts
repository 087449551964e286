import { describe, expect, it } from 'vitest'
import { DIALECTS } from '../../src/dialect/index.ts'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'
import { toy } from '../support/toy-dialect.ts'

const PATH = '/v1/toys/toy-1:ask'
const OPTIONS = { dialects: [...DIALECTS, toy] }
const CONFIG = { budget: { max_iterations: 4, caution_threshold: 0.5, warning_threshold: 0.99 } }

type Part = Readonly<Record<string, unknown>>
interface Content {
  readonly role: string
  readonly parts: readonly Part[]
}
interface Step {
  readonly status: number
  readonly headers: Headers
  readonly body: {
    readonly candidates: readonly { readonly content: Content }[]
    readonly governor?: Record<string, unknown>
  }
}

/** A model that calls a tool as long as it has one. */
const searching: Script = ({ json }, number) => {
  const call = { functionCall: { id: `c${number}`, name: 'search', args: { query: `page ${number}` } } }
  const parts = json.tools ? [call] : [{ text: 'It is 42.' }]
  return { body: { candidates: [{ content: { role: 'model', parts }, finishReason: 'STOP' }] } }
}

async function runToyAgent(url: string): Promise<Step[]> {
  const contents: Content[] = [{ role: 'user', parts: [{ text: 'Search until you know.' }] }]
  const steps: Step[] = []
  for (;;) {
    const body = JSON.stringify({ contents, tools: [{ functionDeclarations: [{ name: 'search' }] }] })
    const reply = await fetch(`${url}${PATH}`, { method: 'POST', headers: { 'x-toy-key': 'k' }, body })
    const step = { status: reply.status, headers: reply.headers, body: (await reply.json()) as Step['body'] }
    steps.push(step)
    const content = step.body.candidates[0]?.content ?? { role: 'model', parts: [] }
    const results = content.parts.flatMap(({ functionCall: call }) => {
      const { id } = (call ?? {}) as { readonly id?: string }
      return call ? [{ functionResponse: { id, response: { found: `result of ${id}` } } }] : []
    })
    if (results.length === 0) return steps
    contents.push(content, { role: 'user', parts: results })
  }
}

describe('a dialect outside of src, with its model in the path', () => {
  it('a request of a new dialect gets a caution at the end of its input', async () => {
    const { url, provider } = await startBoth(searching, CONFIG, OPTIONS)
    const steps = await runToyAgent(url)
    expect(steps.map(({ headers }) => headers.get('x-governor-tier'))).toContain('caution')
    const cautioned = provider.requests.filter(({ body }) => body.includes('[BUDGET: '))
    expect(cautioned.length).toBeGreaterThan(0)
    for (const { json, target } of cautioned) {
      expect(target).toBe(PATH)
      const last = (json['contents'] as readonly Content[]).at(-1)
      expect(last?.parts.at(-1)?.['text']).toContain('[BUDGET: ')
    }
  })

  it('a run of a new dialect is stopped with a final answer without tools, which has the terminal state', async () => {
    const { url, provider, events, until } = await startBoth(searching, CONFIG, OPTIONS)
    const last = (await runToyAgent(url)).at(-1)
    expect(last?.status).toBe(200)
    expect(last?.body.candidates[0]?.content.parts).toEqual([{ text: 'It is 42.' }])
    expect(last?.body.governor).toMatchObject({
      terminal_state: 'tool_limit_reached',
      has_final_answer: true,
    })
    expect(provider.requests.at(-1)?.json.tools).toBeUndefined()
    await until((event) => event.kind === 'request_ended' && event.verdict === 'stop')
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('a request of a new dialect gets errors in the form of its own API', async () => {
    const { url, provider } = await startBoth(searching, {}, OPTIONS)
    await provider.close()
    const reply = await fetch(`${url}${PATH}`, { method: 'POST', body: '{"contents":[]}' })
    expect(reply.status).toBe(502)
    expect(await reply.json()).toMatchObject({ error: { status: 'NO_RESPONSE' } })
  })
})
