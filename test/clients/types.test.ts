/** `agent-governor/types`: agents in TypeScript see that Governor ended their run. */
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { createOpenAI } from '@ai-sdk/openai'
import Anthropic from '@anthropic-ai/sdk'
import type { AIMessageChunk } from '@langchain/core/messages'
import { ChatOpenAI } from '@langchain/openai'
import { generateText } from 'ai'
import OpenAI from 'openai'
import { describe, expect, expectTypeOf, it, onTestFinished } from 'vitest'
import type { ScopeName } from '../../src/core/budget/scopes.ts'
import type { EndState, TerminalReason } from '../../src/core/terminal.ts'
import { type GovernorEnd, type GovernorReason, type GovernorState, governorOf } from '../../src/types/index.ts'
import { TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'

/** A project of its own with Governor and some packages (`openai-7 as openai`: under another name) installed, and these files. */
function project(packages: readonly string[], files: Readonly<Record<string, string>>): string {
  const folder = mkdtempSync(join(tmpdir(), 'governor-types-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  for (const one of packages) {
    const [name = '', installed = name] = one.split(' as ').reverse()
    mkdirSync(join(folder, 'node_modules', name, '..'), { recursive: true })
    symlinkSync(resolve('node_modules', installed), join(folder, 'node_modules', name))
  }
  // A copy: by a link, its packages would be those of this repository.
  const installed = join(folder, 'node_modules', 'agent-governor')
  cpSync('package.json', join(installed, 'package.json'))
  for (const part of ['types', 'fetch']) cpSync(`dist/${part}`, join(installed, 'dist', part), { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{"type": "module"}')
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text)
  return folder
}

/** Compiles the project strictly, with the declarations of its packages as they are; returns what is wrong. */
function mistakesIn(folder: string, files: readonly string[], resolution: 'nodenext' | 'bundler' = 'nodenext') {
  const module = resolution === 'bundler' ? 'esnext' : 'nodenext'
  const flags = ['--strict', '--noEmit', '--target', 'es2023', '--types', 'node']
  const { stdout } = spawnSync(
    process.execPath,
    [
      resolve('node_modules/typescript/bin/tsc'),
      '--ignoreConfig',
      ...flags,
      '--module',
      module,
      '--moduleResolution',
      resolution,
      ...files,
    ],
    { cwd: folder, encoding: 'utf8' },
  )
  return stdout
}

const documents = ['README.md', ...readdirSync('docs').map((name) => join('docs', name))].filter((name) =>
  name.endsWith('.md'),
)
const EXAMPLES = documents.flatMap((name) =>
  [...readFileSync(name, 'utf8').matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map(([, text = '']) => text),
)

const CLIENTS = ['@anthropic-ai/sdk', '@langchain/openai', '@langchain/core', '@types/node', 'undici-types']

describe('the types of the package', () => {
  it('name every state and every reason that Governor states', () => {
    expectTypeOf<GovernorState>().toEqualTypeOf<EndState>()
    expectTypeOf<GovernorReason>().toEqualTypeOf<TerminalReason>()
    expectTypeOf<NonNullable<GovernorEnd['scope']>>().toEqualTypeOf<ScopeName>()
  })

  it('fit the examples of the documentation', () => {
    expect(EXAMPLES.length).toBeGreaterThanOrEqual(3)
    const files = Object.fromEntries(EXAMPLES.map((text, at) => [`example-${at}.ts`, text]))
    expect(mistakesIn(project(['openai-7 as openai', ...CLIENTS], files), Object.keys(files))).toBe('')
  })

  /** The end of a run in the responses of both SDKs. */
  const ENDS = `
      import 'agent-governor/types'
      import type Anthropic from '@anthropic-ai/sdk'
      import type OpenAI from 'openai'
      export const states = (
        a: OpenAI.ChatCompletion, b: OpenAI.ChatCompletionChunk, c: OpenAI.Responses.Response,
        d: Anthropic.Message, e: Anthropic.RawMessageDeltaEvent, f: Anthropic.Beta.BetaMessage,
      ) => [a, b, c, d, e, f].map(({ governor }) => governor?.terminal_state === 'budget_exceeded')
      // @ts-expect-error: no such state
      export const wrong = (a: OpenAI.ChatCompletion) => a.governor?.terminal_state === 'tired'`

  it('add the end of a run to the responses of both SDKs (bundler, openai-7)', () => {
    const folder = project(['openai-7 as openai', ...CLIENTS], { 'agent.ts': ENDS })
    expect(mistakesIn(folder, ['agent.ts'], 'bundler')).toBe('')
  })

  it('add it (nodenext, openai, in modules and in CommonJS), and know every option of governed(fetch), which fits all three SDKs', () => {
    const options = `
      import { governed } from 'agent-governor/fetch'
      import Anthropic from '@anthropic-ai/sdk'
      import OpenAI from 'openai'
      import { createOpenAI } from '@ai-sdk/openai'
      const budget = { max_iterations: 3, run: { max_tokens: '250k', max_cost_usd: 2 } }
      const loop_guard = { exempt_tools: ['wait_*'] }
      const options = { fetch: governed(fetch, { budget, loop_guard, mode: 'observe', onEvent: ({ kind }) => kind }) }
      export const clients = [new OpenAI(options), new Anthropic(options), createOpenAI(options)]
      // @ts-expect-error: a number
      governed(fetch, { budget: { max_iterations: 'three' } })
      // @ts-expect-error: no such section without a server
      governed(fetch, { server: { port: 1 } })`
    // One compilation of both: nearly all of its time goes to the declarations of the SDKs.
    // CommonJS has declarations of the SDKs of its own.
    const files = { 'agent.ts': ENDS, 'options.ts': options, 'common.cts': ENDS }
    expect(mistakesIn(project(['openai', '@ai-sdk/openai', ...CLIENTS], files), Object.keys(files))).toBe('')
  })

  it('can be required in CommonJS, also by a Node that requires no modules', () => {
    const read = "process.stdout.write(typeof require('agent-governor/types').governorOf)"
    const flags = ['--no-experimental-require-module', '--input-type=commonjs', '-e', read]
    const { stdout } = spawnSync(process.execPath, flags, { cwd: project([], {}), encoding: 'utf8' })
    expect(stdout).toBe('function')
  })

  it('are right where neither SDK is installed', () => {
    const agent = `
      import { type GovernorEnd, governorOf } from 'agent-governor/types'
      export const end: GovernorEnd | undefined = governorOf(new Response())`
    expect(mistakesIn(project(['@types/node', 'undici-types'], { 'agent.ts': agent }), ['agent.ts'])).toBe('')
  })
})

const END = { terminal_state: 'tool_limit_reached', terminal_reason: 'max_iterations' }
const messages = [{ role: 'user' as const, content: 'What is new?' }]
const named = { 'x-governor-session': 'task' }

/** A Governor whose next request of the session ends the run. */
async function atLimit() {
  const both = await startBoth(runaway('search', 'Enough.'), { budget: { max_iterations: 1 } })
  const client = new OpenAI({ baseURL: `${both.url}/v1`, apiKey: 'k', defaultHeaders: named })
  const first = await client.chat.completions.create({ model: 'gpt-test', messages, tools: [...TOOLS] })
  expect(governorOf(first)).toBeUndefined()
  const [choice] = first.choices
  const call = choice?.message.tool_calls?.[0]
  const history: OpenAI.ChatCompletionMessageParam[] = [
    ...messages,
    ...(choice ? [choice.message] : []),
    { role: 'tool', tool_call_id: call?.id ?? '', content: 'nothing' },
  ]
  return { ...both, client, history }
}

describe('governorOf', () => {
  it('finds the end of a run in a completion, in the chunks of a stream, and in headers', async () => {
    const { client, history, url } = await atLimit()
    const request = { model: 'gpt-test', messages: history, tools: [...TOOLS] }
    const { data, response } = await client.chat.completions.create(request).withResponse()
    expect(governorOf(data)).toEqual({
      ...END,
      has_final_answer: true,
      budget_used: 1,
      budget_max: 1,
      scope: 'run',
      session: 'task',
    })
    expect(governorOf(data)).toBe(data.governor)
    const inHeaders = { ...END, has_final_answer: true, session: 'task' }
    expect(governorOf(response)).toEqual(inHeaders)
    expect(governorOf(Object.fromEntries(response.headers))).toEqual(inHeaders)
    let end: GovernorEnd | undefined
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true }))
      end = governorOf(chunk) ?? end
    expect(end).toMatchObject(END)
    expect(governorOf(await fetch(`${url}/health`))).toBeUndefined()
  })

  it('finds it in the events of a stream of Messages and of Responses', async () => {
    const event = { type: 'message_delta', delta: {}, governor: END }
    expect(governorOf(event)).toEqual(END)
    expect(governorOf({ type: 'response.completed', response: { id: 'r', governor: END } })).toEqual(END)
    for (const other of [undefined, null, 'text', 7, [], {}, { governor: 'me' }, { headers: new Headers() }])
      expect(governorOf(other)).toBeUndefined()
    expect(typeof Anthropic).toBe('function')
  })

  it('finds it in the result of the Vercel AI SDK', async () => {
    const { url, history } = await atLimit()
    const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'k', headers: named })
    const [, assistant] = history
    const call = (assistant as OpenAI.ChatCompletionAssistantMessageParam).tool_calls?.[0]
    const toolCallId = call?.id ?? ''
    const result = await generateText({
      model: openai.chat('gpt-test'),
      messages: [
        ...messages,
        {
          role: 'assistant',
          content: [{ type: 'tool-call', toolCallId, toolName: 'search', input: { query: 'x' } }],
        },
        {
          role: 'tool',
          content: [
            {
              type: 'tool-result',
              toolCallId,
              toolName: 'search',
              output: { type: 'text', value: 'nothing' },
            },
          ],
        },
      ],
    })
    expect(governorOf(result)).toMatchObject(END)
  })

  it.each([
    ['invoked', false],
    ['streamed', true],
  ])(
    'governorOf finds the end of a run in LangChain, %s, with a fetch of one’s own or with the raw response',
    async (_, streaming) => {
      const { url, history } = await atLimit()
      let seen: GovernorEnd | undefined
      const options = {
        baseURL: `${url}/v1`,
        defaultHeaders: named,
        async fetch(...args: Parameters<typeof fetch>) {
          const response = await fetch(...args)
          seen = governorOf(response) ?? seen
          return response
        },
      }
      const ask = async (more: object) => {
        const model = new ChatOpenAI({ model: 'gpt-test', apiKey: 'k', configuration: options, ...more })
        const bound = model.bindTools([...TOOLS])
        if (!streaming) return bound.invoke(history as never)
        let whole: AIMessageChunk | undefined
        for await (const chunk of await bound.stream(history as never)) whole = whole?.concat(chunk) ?? chunk
        return whole
      }
      expect(governorOf(await ask({}))).toBeUndefined()
      expect(seen).toMatchObject(END)
      expect(governorOf(await ask({ __includeRawResponse: true }))).toMatchObject(END)
    },
  )
})
