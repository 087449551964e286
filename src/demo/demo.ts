/** `governor demo`: shows an agent that never ends and is stopped by its budget. Nothing leaves this machine. */
import OpenAI from 'openai'
import { pino } from 'pino'
import { buildGovernor } from '../app.ts'
import type { Terminal } from '../cli/command.ts'
import { checkConfig } from '../config/load.ts'
import { afterStep, callStreaming, callWhole, type Message, runAgent, type Step } from './agent.ts'
import { type Script, type ScriptedProvider, startScriptedProvider } from './provider.ts'

const BUDGET = 10

const QUESTION = 'Which vector database is the cheapest for a team of five?'
const FOLLOW_UP = 'Thank you. And which of them runs on a laptop?'

const SCRIPT: Script = {
  calls: [
    { name: 'web_search', arguments: { query: 'vector database pricing' } },
    { name: 'fetch_page', arguments: { url: 'https://example.com/pricing' } },
    { name: 'web_search', arguments: { query: 'vector database pricing 2026' } },
    { name: 'fetch_page', arguments: { url: 'https://example.org/compare' } },
    { name: 'take_note', arguments: { note: 'prices differ by region' } },
    { name: 'web_search', arguments: { query: 'vector database price per region' } },
    { name: 'fetch_page', arguments: { url: 'https://example.com/regions' } },
    { name: 'take_note', arguments: { note: 'free tiers exist as well' } },
    { name: 'web_search', arguments: { query: 'vector database free tier limits' } },
    { name: 'fetch_page', arguments: { url: 'https://example.net/free-tiers' } },
  ],
  answer:
    'Of those I looked at, two have a free tier that is enough for five people. I could not confirm their prices per ' +
    'region.',
}

/** Iterations that the agent of the second story allows itself: so many that it gets no notice about them. */
const ROOMY = 30

const STUCK_QUESTION = 'Is the build of our main branch done?'

const STUCK: Script = {
  calls: [{ name: 'fetch_page', arguments: { url: 'https://ci.example.com/builds/latest' } }],
  answer: 'I could not find out.',
  whenBlocked:
    'The page gives nothing that settles it, however often I read it. Somebody has to look at the build itself.',
}

/** Prints each iteration of an agent that runs away and is stopped, and of one in a loop. Returns 0. */
export async function demo(terminal: Terminal): Promise<number> {
  const provider = await startScriptedProvider(SCRIPT)
  const stuck = await startScriptedProvider(STUCK)
  const upstream = { url: provider.url }
  const governor = buildGovernor(
    checkConfig(
      {
        server: { port: 0 },
        upstreams: { openai: upstream, anthropic: upstream, stuck: { url: stuck.url } },
        budget: { max_iterations: BUDGET },
      },
      'demo',
    ),
    { log: pino({ level: 'silent' }) },
  )
  try {
    const url = await governor.listen()
    // Set here, so that no environment variable changes the agent's key or makes it log.
    const options = { apiKey: 'none-needed', logLevel: 'off' } as const
    const page = pageFor(terminal)
    await showBudget(new OpenAI({ ...options, baseURL: `${url}/v1` }), provider, page)
    const defaultHeaders = { 'x-governor-max-iterations': String(ROOMY) }
    await showLoop(new OpenAI({ ...options, baseURL: `${url}/stuck/v1`, defaultHeaders }), stuck, page)
    return 0
  } finally {
    await governor.close()
    await provider.close()
    await stuck.close()
  }
}

/** Shows an agent that is stopped by its budget, asks again, and gets a new budget. */
async function showBudget(client: OpenAI, provider: ScriptedProvider, page: Page): Promise<void> {
  page.title(`A research agent that never answers, with a budget of ${BUDGET} iterations`)
  page.note('The agent is an ordinary loop with the openai package. The model is a script. Governor sits between.')
  page.speech('user', QUESTION)
  page.columns()
  let last: Step | undefined
  const messages = await runAgent(
    client,
    [
      { role: 'system', content: 'You are a research agent. Use the tools.' },
      { role: 'user', content: QUESTION },
    ],
    (step, sent) => {
      last = step
      page.step(step, addedText(provider, sent))
    },
  )
  if (!last) return
  page.speech('model', last.message.content)
  page.note('The last piece of the streamed response says how the run ended:')
  page.metadata(last)
  // The script starts again after its last call.
  const [first] = SCRIPT.calls
  const call = first && callText(first.name, JSON.stringify(first.arguments))
  page.note(`Without a budget the model would have called ${call} next and gone on: ` + 'nothing in this agent counts.')

  page.title('The agent lost that answer and asks again')
  const callsBefore = provider.received.length
  const again = await callStreaming(client, messages)
  const callsMade = provider.received.length - callsBefore
  page.columns()
  page.step(again, undefined)
  page.speech('model', again.message.content)
  page.note(`The recorded answer. Calls to the provider for it: ${callsMade}.`)

  page.title('A person writes again, and the budget is a new one')
  page.speech('user', FOLLOW_UP)
  page.columns()
  const next = [...afterStep(messages, last), { role: 'user' as const, content: FOLLOW_UP }]
  page.step(await callWhole(client, next), addedText(provider, next))
  page.note('That response was plain JSON; the others were streams. Both are guarded alike.')
}

/** Shows an agent whose model makes one call again and again. */
async function showLoop(client: OpenAI, provider: ScriptedProvider, page: Page): Promise<void> {
  page.title('Another agent makes the same call again and again')
  page.speech('user', STUCK_QUESTION)
  page.columns()
  let last: Step | undefined
  let callCount = 0
  await runAgent(client, [{ role: 'user', content: STUCK_QUESTION }], (step, sent) => {
    last = step
    callCount += step.calls.length
    page.step(step, addedText(provider, sent))
  })
  page.speech('model', last?.message.content)
  page.note(
    `Call ${callCount + 1} never reached the agent: Governor took it out of the response and asked the model again.`,
  )
  page.note('Your own agent: start Governor, then set OPENAI_BASE_URL=http://127.0.0.1:8787/v1')
}

/** Returns the text that Governor added to the newest request; `undefined` if it added none. */
function addedText(provider: ScriptedProvider, sent: readonly Message[]): string | undefined {
  const received = provider.received.at(-1)?.messages.at(-1)?.content
  const original = sent.at(-1)?.content
  if (typeof received !== 'string' || typeof original !== 'string' || received === original) return undefined
  return received.startsWith(original) ? received.slice(original.length).trim() : received
}

function callText(name: string, argumentsText: string): string {
  const values = Object.values(JSON.parse(argumentsText) as Record<string, unknown>)
  return `${name}(${values.map((value) => JSON.stringify(value)).join(', ')})`
}

/** Prints the parts of the demo. */
interface Page {
  title(text: string): void
  note(text: string): void
  speech(speaker: string, text: unknown): void
  columns(): void
  step(step: Step, added: string | undefined): void
  metadata(step: Step): void
}

const BAR = 10
const WIDTH = 96
const INDENT = '                          '

const COLOURS = {
  allow: '32',
  CAUTION: '33',
  WARNING: '35',
  LOOP: '36',
  BLOCK: '31',
  STOP: '31',
  title: '1',
  quiet: '2',
} as const

type Label = Exclude<keyof typeof COLOURS, 'title' | 'quiet'>

function labelOf(headers: Headers): Label {
  const verdict = headers.get('x-governor-verdict')
  if (verdict === 'stop') return 'STOP'
  if (verdict === 'block') return 'BLOCK'
  const tier = headers.get('x-governor-tier')
  if (tier) return tier === 'caution' ? 'CAUTION' : 'WARNING'
  return headers.has('x-governor-loop') ? 'LOOP' : 'allow'
}

/** Breaks text into indented lines that are no longer than the page. */
function wrapped(text: string, indent: string): string {
  const lines: string[] = []
  for (const word of text.split(/\s+/)) {
    const line = lines.at(-1)
    if (line !== undefined && indent.length + line.length + word.length < WIDTH) {
      lines[lines.length - 1] = `${line} ${word}`
    } else lines.push(word)
  }
  return lines.map((line) => `${indent}${line}\n`).join('')
}

function pageFor({ out, isInteractive, env }: Terminal): Page {
  const hasColours = isInteractive && !env['NO_COLOR']
  const paint = (name: keyof typeof COLOURS, text: string) =>
    hasColours ? `\u001b[${COLOURS[name]}m${text}\u001b[0m` : text
  return {
    title: (text) => out(`\n${paint('title', text)}\n`),
    note: (text) => out(`\n${wrapped(text, '  ')}`),
    speech: (speaker, text) => out(`\n${wrapped(`${speaker}: ${String(text)}`, '  ')}`),
    columns: () => out(`\n${paint('quiet', '  iteration  budget      verdict  the model')}\n`),
    step({ headers, calls }, added) {
      const iteration = headers.get('x-governor-iteration') ?? ''
      const [used = 0, max = 1] = iteration.split('/').map(Number)
      const filled = Math.min(BAR, Math.ceil((used / max) * BAR))
      const bar = '█'.repeat(filled) + '░'.repeat(BAR - filled)
      const label = labelOf(headers)
      const does =
        calls.length === 0
          ? 'answers'
          : calls.map(({ function: { name, arguments: text } }) => callText(name, text)).join(', ')
      out(`  ${iteration.padStart(9)}  ${bar}  ${paint(label, label.padEnd(7))}  ${does}\n`)
      if (added !== undefined) out(paint('quiet', wrapped(`was told: ${added}`, INDENT)))
    },
    metadata: ({ governor }) => {
      for (const [key, value] of Object.entries(governor ?? {})) {
        out(`    ${key.padEnd(18)}${JSON.stringify(value)}\n`)
      }
    },
  }
}
