import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'

/** One message of a transcript, in no API's form. */
type Message =
  | { readonly kind: 'user' | 'assistant'; readonly text: string }
  | { readonly kind: 'step'; readonly id: string; readonly query: string; readonly result: string }

const SYSTEM = 'You are a research agent.'
const user = (text: string): Message => ({ kind: 'user', text })
const assistant = (text: string): Message => ({ kind: 'assistant', text })
const stepOf = (id: string, query: string): Message => ({ kind: 'step', id, query, result: `found ${query}` })

/** Each API's path, and a transcript as the body of a request. */
const DIALECTS = {
  chat: {
    path: '/v1/chat/completions',
    body: (transcript: readonly Message[]) => ({
      model: 'gpt-test',
      tools: [{ type: 'function', function: { name: 'search', parameters: {} } }],
      messages: [
        { role: 'system', content: SYSTEM },
        ...transcript.flatMap((message): object[] => {
          if (message.kind !== 'step') return [{ role: message.kind, content: message.text }]
          const call = { name: 'search', arguments: JSON.stringify({ query: message.query }) }
          return [
            {
              role: 'assistant',
              content: null,
              tool_calls: [{ id: message.id, type: 'function', function: call }],
            },
            { role: 'tool', tool_call_id: message.id, content: message.result },
          ]
        }),
      ],
    }),
  },
  messages: {
    path: '/v1/messages',
    body: (transcript: readonly Message[]) => ({
      model: 'claude-test',
      max_tokens: 100,
      system: SYSTEM,
      tools: [{ name: 'search', input_schema: { type: 'object' } }],
      messages: transcript.flatMap((message): object[] => {
        if (message.kind !== 'step') return [{ role: message.kind, content: message.text }]
        const call = { type: 'tool_use', id: message.id, name: 'search', input: { query: message.query } }
        return [
          { role: 'assistant', content: [call] },
          { role: 'user', content: [{ type: 'tool_result', tool_use_id: message.id, content: message.result }] },
        ]
      }),
    }),
  },
  responses: {
    path: '/v1/responses',
    body: (transcript: readonly Message[]) => ({
      model: 'gpt-test',
      store: false,
      instructions: SYSTEM,
      tools: [{ type: 'function', name: 'search', parameters: {} }],
      input: transcript.flatMap((message): object[] => {
        if (message.kind !== 'step') return [{ role: message.kind, content: message.text }]
        const call = { name: 'search', arguments: JSON.stringify({ query: message.query }) }
        return [
          { type: 'function_call', call_id: message.id, ...call },
          { type: 'function_call_output', call_id: message.id, output: message.result },
        ]
      }),
    }),
  },
} as const

type DialectName = keyof typeof DIALECTS

/** What every agent of a test has before its own task. */
const SHARED: Record<string, readonly Message[]> = {
  'an example in the prompt': [user('How warm is it?'), stepOf('example', 'weather'), assistant('It is warm.')],
  'two example pairs in the prompt': [user('One?'), assistant('1.'), user('Two?'), assistant('2.')],
  'a greeting in the prompt': [assistant('Hi! How can I help you?')],
  'an inherited history': [
    user('Find out everything.'),
    ...Array.from({ length: 6 }, (_, at) => stepOf(`parent${at}`, `parent ${at}`)),
    assistant('Now each of you takes a part.'),
  ],
  nothing: [],
}

/** The requests of agent `name`: its task, and one step more each time. `hasUniqueIds`: of its calls. */
function requestsOf(shared: readonly Message[], name: number, steps: number, hasUniqueIds: boolean) {
  const begin = [...shared, user(`Task ${name}.`)]
  const all = Array.from({ length: steps }, (_, at) =>
    stepOf(hasUniqueIds ? `call_${name}_${at}` : `call_${at}`, `query ${at}`),
  )
  return Array.from({ length: steps + 1 }, (_, at) => [...begin, ...all.slice(0, at)])
}

/** A provider that says whose task it was asked about. */
const namesTask: Script = ({ body }) => {
  const tasks = body.toString().match(/Task \d+\./g) ?? []
  return { text: `An answer to ${tasks.at(-1)}` }
}

/** The limit of iterations, and how many steps each agent makes: it is stopped, and asks once more. */
const LONG = { limit: 5, steps: 7 }
const SHORT = { limit: 2, steps: 3 }
type Length = typeof LONG

/** Sends one request, and returns what its agent sees of Governor. */
async function ask(url: string, dialect: DialectName, transcript: readonly Message[], headers: Record<string, string>) {
  const { path, body } = DIALECTS[dialect]
  const response = await fetch(`${url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body(transcript)),
  })
  const text = await response.text()
  return {
    status: response.status,
    iteration: response.headers.get('x-governor-iteration'),
    verdict: response.headers.get('x-governor-verdict'),
    reason: response.headers.get('x-governor-terminal-reason'),
    answer: /An answer to Task \d+\./.exec(text)?.[0],
  }
}

type Seen = Awaited<ReturnType<typeof ask>>

/** Lets agents of one credential make their requests in an order; returns what each of them saw, and would see alone. */
async function play(
  dialect: DialectName,
  { shared, order, id, hasUniqueIds }: World,
  { limit, steps }: Length,
): Promise<{ readonly together: Seen[][]; readonly alone: Seen[][] }> {
  const { url } = await startBoth(namesTask, { budget: { max_iterations: limit } })
  const count = Math.max(...order) + 1
  const agents = Array.from({ length: count }, (_, name) => requestsOf(shared, name, steps, hasUniqueIds))
  const session: Record<string, string> = id ? { 'x-governor-session': 'shared' } : {}
  const together: Seen[][] = agents.map(() => [])
  for (const name of order) {
    const request = agents[name]?.[together[name]?.length ?? 0] ?? []
    const seen = await ask(url, dialect, request, {
      authorization: 'Bearer all',
      'x-api-key': 'all',
      ...session,
    })
    together[name]?.push(seen)
  }
  // Agents differ in their name only: what one of them sees alone, each other one would see.
  const first: Seen[] = []
  for (const request of agents[0] ?? [])
    first.push(await ask(url, dialect, request, { authorization: 'Bearer one', 'x-api-key': 'one', ...session }))
  const alone = agents.map((_, name) =>
    first.map((seen) => ({ ...seen, answer: seen.answer?.replace('Task 0.', `Task ${name}.`) })),
  )
  return { together, alone }
}

interface World {
  readonly shared: readonly Message[]
  /** Whose request comes next; each agent stands here once for each of its requests. */
  readonly order: readonly number[]
  /** All agents name one session. */
  readonly id: boolean
  readonly hasUniqueIds: boolean
}

const worldOf = (count: number): fc.Arbitrary<World> => {
  const turns = Array.from({ length: count * (LONG.steps + 1) }, (_, at) => at % count)
  return fc.record({
    shared: fc.constantFrom(...Object.values(SHARED)),
    order: fc.shuffledSubarray(turns, { minLength: turns.length }),
    id: fc.boolean(),
    hasUniqueIds: fc.boolean(),
  })
}

const NAMES = Object.keys(DIALECTS) as DialectName[]

describe.each(NAMES)('agents that run side by side over %s', (dialect) => {
  it.each([
    [2, 6],
    [4, 3],
    [24, 1],
  ])('each get what they would get alone, whatever %i of them share and in any order', async (count, numRuns) => {
    await fc.assert(
      fc.asyncProperty(worldOf(count), async (world) => {
        const { together, alone } = await play(dialect, world, LONG)
        expect(together).toEqual(alone)
      }),
      { numRuns },
    )
  })

  // Eighty are more than a session has threads for. Each thing that they share is tried in one dialect.
  it.each(Object.entries(SHARED).filter((_, at) => NAMES[at % NAMES.length] === dialect))(
    'each get what they would get alone when eighty share %s',
    async (title, shared) => {
      for (const id of title.startsWith('an example') ? [false, true] : [false]) {
        const order = Array.from({ length: 80 * (SHORT.steps + 1) }, (_, at) => at % 80)
        const { together, alone } = await play(dialect, { shared, order, id, hasUniqueIds: id }, SHORT)
        expect(together).toEqual(alone)
        expect(together.map((seen) => seen.at(-1)?.answer)).toEqual(
          Array.from({ length: 80 }, (_, name) => `An answer to Task ${name}.`),
        )
      }
    },
    120_000,
  )
})
