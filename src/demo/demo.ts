/** `governor demo`: shows an agent that never ends and is stopped by its budget. Nothing leaves this machine. */
import OpenAI from 'openai'
import { pino } from 'pino'
import { buildGovernor } from '../app.ts'
import type { Terminal } from '../cli/command.ts'
import { coloured, showsColours, wordLines } from '../cli/terminal-text.ts'
import { checkConfig } from '../config/load.ts'
import { afterStep, callModel, type Message, runAgent, type Step } from './agent.ts'
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

export async function demo(terminal: Terminal): Promise<number> {
  const provider = await startScriptedProvider(SCRIPT)
  const stuck = await startScriptedProvider(STUCK)
  const upstream = { url: provider.url }
  const config = checkConfig(
    {
      server: { port: 0 },
      upstreams: { openai: upstream, anthropic: upstream, stuck: { url: stuck.url } },
      budget: { max_iterations: BUDGET },
    },
    'demo',
  )
  const stage = createStage(terminal)
  const governor = buildGovernor(config, { log: pino({ level: 'silent' }) })
  try {
    const url = await governor.listen()
    // Set here, so that no environment variable changes the agent's key or makes it log.
    const options = { apiKey: 'none-needed', logLevel: 'off' } as const
    await showBudget(new OpenAI({ ...options, baseURL: `${url}/v1` }), provider, stage)
    const defaultHeaders = { 'x-governor-max-iterations': String(ROOMY) }
    await showLoop(new OpenAI({ ...options, baseURL: `${url}/stuck/v1`, defaultHeaders }), stuck, stage)
    return 0
  } finally {
    await governor.close()
    await provider.close()
    await stuck.close()
  }
}

/** Shows an agent that is stopped by its budget, asks again, and gets a new budget. */
async function showBudget(client: OpenAI, provider: ScriptedProvider, stage: Stage): Promise<void> {
  stage.title(`A research agent that never answers, with a budget of ${BUDGET} iterations`)
  stage.say('The agent is an ordinary loop with the openai package. The model is a script. Governor sits between.')
  const instruction = { role: 'system', content: 'You are a research agent. Use the tools.' } as const
  const last = await showRun(client, [instruction, { role: 'user', content: QUESTION }], provider, stage)
  if (!last) return
  stage.say('The last piece of the streamed response says how the run ended:')
  for (const [key, value] of Object.entries(last.governor ?? {}))
    stage.print(`    ${key.padEnd(18)}${JSON.stringify(value)}`)
  // The script starts again after its last call.
  const [first] = SCRIPT.calls
  const call = first && callText(first.name, JSON.stringify(first.arguments))
  stage.say(`Without a budget the model would have called ${call} next and gone on: nothing in this agent counts.`)

  stage.title('The agent lost that answer and asks again')
  const callsBefore = provider.received.length
  const again = await callModel(client, last.sent)
  stage.columns()
  stage.step(again, undefined)
  stage.say(`model: ${again.message?.content}`)
  stage.say(`The recorded answer. Calls to the provider for it: ${provider.received.length - callsBefore}.`)

  stage.title('A person writes again, and the budget is a new one')
  stage.say(`user: ${FOLLOW_UP}`)
  stage.columns()
  const next = await callModel(client, [...afterStep(last), { role: 'user', content: FOLLOW_UP }])
  stage.step(next, addedText(provider, next))
}

async function showLoop(client: OpenAI, provider: ScriptedProvider, stage: Stage): Promise<void> {
  stage.title('Another agent makes the same call again and again')
  const last = await showRun(client, [{ role: 'user', content: STUCK_QUESTION }], provider, stage)
  const call = last?.sent.filter(({ role }) => role === 'assistant').length ?? 0
  stage.say(`Call ${call + 1} never reached the agent: Governor took it out of the response and asked the model again.`)
  stage.say('Your own agent: start Governor, then set OPENAI_BASE_URL=http://127.0.0.1:8787/v1')
}

/** Shows the question, every step and the answer of an agent; returns its last step. */
async function showRun(client: OpenAI, start: readonly Message[], provider: ScriptedProvider, stage: Stage) {
  stage.say(`user: ${start.at(-1)?.content}`)
  stage.columns()
  let last: Step | undefined
  for await (const step of runAgent(client, start)) {
    last = step
    stage.step(step, addedText(provider, step))
  }
  stage.say(`model: ${last?.message?.content}`)
  return last
}

/** Returns the text that Governor added to the newest request; `undefined` if it added none. */
function addedText(provider: ScriptedProvider, { sent }: Step): string | undefined {
  const received = provider.received.at(-1)?.messages.at(-1)?.content
  const original = sent.at(-1)?.content
  if (typeof received !== 'string' || typeof original !== 'string' || received === original) return undefined
  return received.startsWith(original) ? received.slice(original.length).trim() : received
}

function callText(name: string, argumentsText: string): string {
  const given: Record<string, unknown> = JSON.parse(argumentsText)
  const values = Object.values(given)
  return `${name}(${values.map((value) => JSON.stringify(value)).join(', ')})`
}

const BAR = 10
const WIDTH = 96

const COLOURS = {
  allow: 'green',
  CAUTION: 'yellow',
  WARNING: 'magenta',
  LOOP: 'cyan',
  BLOCK: 'red',
  STOP: 'red',
} as const

function wrapped(text: string, indent: number): string {
  return `${wordLines(text, WIDTH - indent).join('\n')}\n`.replace(/^/gm, ' '.repeat(indent)).trimEnd()
}

type Stage = ReturnType<typeof createStage>

function createStage(terminal: Terminal) {
  const hasColours = showsColours(terminal)
  const print = (text: string) => terminal.out(`${text}\n`)
  return {
    print,
    title: (text: string) => print(`\n${coloured(text, 'bold', hasColours)}`),
    say: (text: string) => print(`\n${wrapped(text, 2)}`),
    columns: () => print(`\n${coloured('  iteration  budget      verdict  the model', 'grey', hasColours)}`),
    /** Shows a step, and the text that Governor added to its request. */
    step({ headers, calls }: Step, added: string | undefined): void {
      const iteration = headers.get('x-governor-iteration') ?? ''
      const [used = 0, max = 1] = iteration.split('/').map(Number)
      const filled = Math.min(BAR, Math.ceil((used / max) * BAR))
      const bar = '█'.repeat(filled) + '░'.repeat(BAR - filled)
      const decided = headers.get('x-governor-verdict')
      const tier = headers.get('x-governor-tier')
      let label: keyof typeof COLOURS = headers.has('x-governor-loop') ? 'LOOP' : 'allow'
      if (tier) label = tier === 'caution' ? 'CAUTION' : 'WARNING'
      if (decided === 'block') label = 'BLOCK'
      if (decided === 'stop') label = 'STOP'
      const verdict = coloured(label.padEnd(7), COLOURS[label], hasColours)
      const does = calls.map(({ function: called }) => callText(called.name, called.arguments)).join(', ')
      print(`  ${iteration.padStart(9)}  ${bar}  ${verdict}  ${does || 'answers'}`)
      if (added !== undefined) print(coloured(wrapped(`Governor said: ${added}`, 26), 'grey', hasColours))
    },
  }
}
