/** How code learns that Governor ended its run: each documented way, over the result of each documented client. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { text as textOf } from 'node:stream/consumers'
import Anthropic from '@anthropic-ai/sdk'
import { GoogleGenAI } from '@google/genai'
import { ChatOpenAI } from '@langchain/openai'
import { buildSync } from 'esbuild'
import type OpenAI from 'openai'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { governorOf } from '../../src/types/index.ts'
import { TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { ASKED, MESSAGES_TOOLS } from '../support/messages.ts'
import { describeWith } from '../support/programs.ts'
import type { Received, Script } from '../support/provider.ts'
import { TOOL } from '../support/responses-agent.ts'
import { mayCall } from '../support/scripts.ts'
import { chat as CHAT, anthropic as MESSAGES, responses as RESPONSES, send } from '../support/stopped.ts'
import { AGENTS_SDKS, AI_SDKS, OPENAI_CLIENTS } from '../support/versions.ts'

const budget = { max_iterations: 1, adaptive: false }
const ANSWER = 'It is 42.'
/** Models that give an answer when they may not call tools any more, and that give none. */
const MODELS = [true, false].map((answers): { readonly answers: boolean; readonly script: Script } => {
  const calls = [{ name: 'search', arguments: {} }]
  const isOver: (request: Received) => boolean = (request) => !mayCall(request) || !request.json.tools
  return { answers, script: (request) => (answers && isOver(request) ? { text: ANSWER } : { calls }) }
})

/** Returns the newest end that something said while it came. */
async function lastOf(events: AsyncIterable<unknown>) {
  let end: unknown
  for await (const event of events) if (governorOf(event)) end = event
  return end
}

interface Way {
  readonly name: string
  /** Only headers of a stream are seen, which do not say whether there is an answer. */
  readonly isStateAlone?: true
  readonly ask: (url: string) => Promise<unknown>
}

const chatBody = { model: 'gpt-test', ...CHAT.request } as OpenAI.ChatCompletionCreateParamsNonStreaming
const itemsBody = { model: 'gpt-test', ...RESPONSES.request } as OpenAI.Responses.ResponseCreateParamsNonStreaming
const OPENAI_WAYS = OPENAI_CLIENTS.flatMap(({ name, OpenAI }): Way[] => {
  const client = (url: string) => new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
  return [
    { name: `a completion of ${name}`, ask: (url) => client(url).chat.completions.create(chatBody) },
    {
      name: `a completion of ${name} with its response`,
      ask: (url) => client(url).chat.completions.create(chatBody).withResponse(),
    },
    { name: `the response of ${name}`, ask: (url) => client(url).chat.completions.create(chatBody).asResponse() },
    {
      name: `the response of ${name} to a stream`,
      isStateAlone: true,
      ask: (url) =>
        client(url)
          .chat.completions.create({ ...chatBody, stream: true })
          .asResponse(),
    },
    {
      name: `the chunks of ${name}`,
      ask: async (url) => lastOf(await client(url).chat.completions.create({ ...chatBody, stream: true })),
    },
    { name: `a response of ${name}`, ask: (url) => client(url).responses.create(itemsBody) },
    {
      name: `the events of a response of ${name}`,
      ask: async (url) => lastOf(await client(url).responses.create({ ...itemsBody, stream: true })),
    },
  ]
})

const asked = { model: 'claude-test', ...MESSAGES.request } as Anthropic.MessageCreateParamsNonStreaming
const anthropic = (url: string) => new Anthropic({ apiKey: 'k', baseURL: url, maxRetries: 0 })
const runner = (url: string) =>
  anthropic(url).beta.messages.toolRunner({
    model: 'claude-test',
    max_tokens: 100,
    messages: [...ASKED] as Anthropic.Beta.BetaMessageParam[],
    tools: MESSAGES_TOOLS.map((tool) => ({ ...tool, run: () => 'found', parse: (input: unknown) => input })),
    thread: false,
  })
const ANTHROPIC_WAYS: readonly Way[] = [
  { name: 'a message of the Anthropic SDK', ask: (url) => anthropic(url).messages.create(asked) },
  {
    name: 'a message of the Anthropic SDK with its response',
    ask: (url) => anthropic(url).messages.create(asked).withResponse(),
  },
  { name: 'the events of the Anthropic SDK', ask: (url) => lastOf(anthropic(url).messages.stream(asked)) },
  { name: 'the last message of the tool runner', ask: (url) => runner(url).runUntilDone() },
]

const AI_WAYS = AI_SDKS.flatMap(({ name, ai, createOpenAI, createAnthropic }) => {
  const models = (url: string) => {
    const settings = { baseURL: `${url}/v1`, apiKey: 'k' }
    const openai = createOpenAI(settings)
    return [openai.chat('gpt-test'), openai('gpt-test'), createAnthropic(settings)('claude-test')]
  }
  const tools = { search: ai.tool({ inputSchema: ai.jsonSchema({ type: 'object' }), execute: () => 'found' }) }
  return ['Chat Completions', 'Responses', 'Messages'].flatMap((api, at): Way[] => {
    const settings = (url: string) => {
      const model = models(url)[at]
      if (!model) throw new Error('no model')
      return { model, tools, prompt: 'Go.', stopWhen: ai.stepCountIs(5), maxRetries: 0, maxOutputTokens: 4096 }
    }
    return [
      { name: `a result of ${name} over ${api}`, ask: async (url) => ai.generateText(settings(url)) },
      {
        name: `the awaited response of a stream of ${name} over ${api}`,
        isStateAlone: true,
        async ask(url) {
          const result = ai.streamText(settings(url))
          await result.consumeStream()
          return await result.response
        },
      },
    ]
  })
})

const AGENTS_WAYS = AGENTS_SDKS.flatMap(({ name, agents, OpenAI }) =>
  [true, false].flatMap((useResponses): Way[] => {
    const run = (url: string) => {
      const openAIClient = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
      const modelProvider = new agents.OpenAIProvider({ openAIClient, useResponses })
      const parameters = { type: 'object' as const, properties: {}, required: [], additionalProperties: true as const }
      const search = { name: 'search', description: 'Search', strict: false, execute: async () => 'found' } as const
      const agent = new agents.Agent({ name: 'A', model: 'gpt-4o', tools: [agents.tool({ ...search, parameters })] })
      return { agent, runner: new agents.Runner({ modelProvider, tracingDisabled: true }) }
    }
    const whole = async (url: string) => {
      const { agent, runner } = run(url)
      return runner.run(agent, 'Go.')
    }
    const api = useResponses ? 'Responses' : 'Chat Completions'
    return [
      { name: `a result of ${name} over ${api}`, ask: whole },
      {
        name: `the last raw response of ${name} over ${api}`,
        ask: async (url) => (await whole(url)).rawResponses.at(-1),
      },
      {
        name: `the events of ${name} over ${api}`,
        async ask(url) {
          const { agent, runner } = run(url)
          return lastOf(await runner.run(agent, 'Go.', { stream: true }))
        },
      },
    ]
  }),
)

const langchain = (url: string, more: object) =>
  new ChatOpenAI({ model: 'gpt-test', apiKey: 'k', configuration: { baseURL: `${url}/v1` }, ...more }).bindTools([
    ...TOOLS,
  ])
const history = (CHAT.request as { readonly messages: never }).messages
const genai = (url: string) => ({
  models: new GoogleGenAI({ apiKey: 'k', httpOptions: { baseUrl: url } }).models,
  request: {
    model: 'gemini-2.5-flash',
    contents: [
      { role: 'user', parts: [{ text: 'Go.' }] },
      { role: 'model', parts: [{ functionCall: { name: 'search', args: {} } }] },
      { role: 'user', parts: [{ functionResponse: { name: 'search', response: { output: 'found' } } }] },
    ],
    config: { tools: [{ functionDeclarations: [{ name: 'search' }] }] },
  },
})
const OTHER_WAYS: readonly Way[] = [
  {
    name: 'a response of the Google GenAI SDK',
    ask: (url) => genai(url).models.generateContent(genai(url).request),
  },
  {
    name: 'the chunks of a stream of the Google GenAI SDK',
    isStateAlone: true,
    ask: async (url) => lastOf(await genai(url).models.generateContentStream(genai(url).request)),
  },
  {
    name: 'a message of LangChain with its raw response',
    ask: (url) => langchain(url, { __includeRawResponse: true }).invoke(history),
  },
  {
    name: 'the messages of a stream of LangChain over Responses',
    ask: async (url) => lastOf(await langchain(url, { useResponsesApi: true }).stream(history)),
  },
  {
    name: 'a response of fetch',
    ask: (url) =>
      fetch(`${url}/v1/responses`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: 'Bearer k' },
        body: JSON.stringify({ ...itemsBody, tools: [TOOL] }),
      }),
  },
]

const WAYS = [...OPENAI_WAYS, ...ANTHROPIC_WAYS, ...AI_WAYS, ...AGENTS_WAYS, ...OTHER_WAYS]

describe.each(MODELS)('where the model gives an answer at the limit: $answers', ({ answers, script }) => {
  it.each(WAYS)('governorOf finds the end of a run in $name', async ({ ask, isStateAlone }) => {
    const { url } = await startBoth(script, { budget })
    const end = governorOf(await ask(url))
    expect(end).toMatchObject({ terminal_state: 'tool_limit_reached', terminal_reason: 'max_iterations' })
    expect(end?.has_final_answer).toBe(isStateAlone ? undefined : answers)
  })

  it.each([CHAT, MESSAGES, RESPONSES])(
    'a header says it on whole responses of $name and on no other, also when the answer is sent again',
    async (api) => {
      for (const stream of [false, true]) {
        const { url } = await startBoth(script, { budget })
        for (let time = 1; time <= 2; time++) {
          const { headers, text } = await send(url, api, api.request, stream)
          expect(text).toContain(`"has_final_answer":${answers}`)
          expect(headers.get('x-governor-has-final-answer')).toBe(stream ? null : String(answers))
        }
      }
    },
  )
})

/** The examples of a page in one language. */
const examplesOf = (page: string, language: string) =>
  [...readFileSync(page, 'utf8').matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\`$`, 'gm'))].map(
    ([, text = '']) => text,
  )
const IDIOMS = ['README.md', 'docs/wire.md', 'docs/clients.md']
  .flatMap((page) => examplesOf(page, 'ts'))
  .filter((text) => text.includes('agent-governor/types'))

/** Loads an example as the module that a reader makes of it, with this Governor's address. */
function load<Exports>(example: string | undefined, url: string): Exports {
  const folder = mkdtempSync(join(tmpdir(), 'governor-idiom-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const outfile = join(folder, 'idiom.cjs')
  symlinkSync(resolve('node_modules'), join(folder, 'node_modules'))
  const contents = (example ?? '').replaceAll('http://127.0.0.1:8787', url)
  const stdin = { contents, loader: 'ts', resolveDir: process.cwd() } as const
  const alias = { 'agent-governor/types': './src/types/index.ts' }
  buildSync({ stdin, alias, outfile, bundle: true, platform: 'node', packages: 'external', logLevel: 'error' })
  for (const name of ['OPENAI_API_KEY', 'ANTHROPIC_API_KEY']) vi.stubEnv(name, 'k')
  onTestFinished(() => void vi.unstubAllEnvs())
  return createRequire(outfile)(outfile) as Exports
}

describe.each(MODELS)(
  'the documented code, where the model gives an answer at the limit: $answers',
  ({ answers, script }) => {
    it('of the README throws if there is no answer, and only then', async () => {
      const { url } = await startBoth(script, { budget })
      const { ask } = load<{ ask(messages: unknown): Promise<OpenAI.ChatCompletion> }>(
        IDIOMS.find((text) => text.includes('function ask(messages')),
        url,
      )
      const asked = ask(history)
      if (answers) expect((await asked).choices[0]?.message.content).toBe(ANSWER)
      else await expect(asked).rejects.toThrow('stopped by max_iterations without an answer')
    })

    it('for OpenAI goes on until the run is over, and says so if it has no answer', async () => {
      const { url } = await startBoth(script, { budget })
      const warn = vi.spyOn(console, 'warn').mockReturnValue()
      const { step } = load<{ step(tools: unknown): Promise<string | null> }>(
        IDIOMS.find((text) => text.includes('function step(')),
        url,
      )
      // No result of its call is in the history of this example, and its next request is an iteration all the same.
      expect(await step([...TOOLS])).toBeNull()
      expect(await step([...TOOLS])).toBe(answers ? ANSWER : '(Reached max iterations: 1)')
      expect(warn.mock.calls.length).toBe(answers ? 0 : 1)
      warn.mockRestore()
    })

    it('for the Anthropic SDK returns the end that a stream states', async () => {
      const { url } = await startBoth(script, { budget: { session: { max_tokens: 1 } } })
      vi.stubEnv('ANTHROPIC_CUSTOM_HEADERS', 'x-governor-session: task')
      const { answer } = load<{ answer(prompt: unknown): Promise<unknown> }>(
        IDIOMS.find((text) => text.includes('function answer(')),
        url,
      )
      const found = (content: string) => answer([{ type: 'tool_result', tool_use_id: 't', content }])
      expect(await found('first')).toBeUndefined()
      expect(await found('second')).toMatchObject({ terminal_reason: 'max_tokens', has_final_answer: answers })
    })

    it('for LangChain says what ended the run', async () => {
      const { url } = await startBoth(script, { budget })
      const { ask } = load<{ ask(prompt: unknown): Promise<string> }>(
        IDIOMS.find((text) => text.includes('@langchain/openai')),
        url,
      )
      expect(await ask(history)).toContain('(ended by Governor: max_iterations)')
      expect(await ask('What else is new?')).not.toContain('ended by Governor')
    })
  },
)

it('each documented example of governorOf is one of those that these tests run', () => {
  const starts = ['function ask(messages', 'function step(', 'function answer(', '@langchain/openai']
  expect(IDIOMS.filter((text) => starts.some((start) => text.includes(start)))).toEqual(IDIOMS)
  expect(IDIOMS).toHaveLength(starts.length)
})

describeWith('python3', 'the Python of the README', () => {
  /** What the official package gives of a completion: fields that it does not know are in `model_extra`. */
  const STAND_IN = `
import json, os, sys, urllib.request
class Completion:
    def __init__(self, fields):
        known = ("id", "object", "created", "model", "choices", "usage")
        self.model_extra = {name: value for name, value in fields.items() if name not in known}
class Completions:
    def create(self, *_):
        headers = {"content-type": "application/json", "authorization": "Bearer k"}
        body = sys.stdin.buffer.read()
        asked = urllib.request.Request(os.environ["GOVERNOR"] + "/v1/chat/completions", body, headers)
        return Completion(json.load(urllib.request.urlopen(asked)))
class Client:
    pass
client = Client()
client.chat = Client()
client.chat.completions = Completions()
`
  const [example = ''] = examplesOf('README.md', 'python')

  it.each(MODELS)(
    'raises an error if there is no answer, and only then (answers: $answers)',
    async ({ answers, script }) => {
      const { url } = await startBoth(script, { budget })
      const child = spawn('python3', ['-c', STAND_IN + example], { env: { ...process.env, GOVERNOR: url } })
      child.stdin.end(JSON.stringify(chatBody))
      const [said, [code]] = await Promise.all([textOf(child.stderr), once(child, 'close')])
      expect(code).toBe(answers ? 0 : 1)
      if (!answers) expect(said).toContain('RuntimeError: stopped by max_iterations without an answer')
    },
  )
})
