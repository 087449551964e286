/** A model that calls tools, and an agent that shortens its history before each request, in every dialect. */
import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { gzipSync } from 'node:zlib'
import { events, message } from './messages.ts'
import { type Answer, type ChatBody, chunks, completion, serve } from './provider.ts'
import type { Reducer } from './reducers.ts'
import { eventTexts, responseEvents, responseObject } from './responses.ts'
import {
  type AnswerEntry,
  DIALECTS,
  type DialectName,
  type Entry,
  FORMS,
  lettersOf,
  type ReadAnswer,
  readAnswer,
} from './transcripts.ts'

/** How a streamed answer stops before its end. */
export type BrokenEnd = 'cut' | 'no end' | 'error'

/** What the model does with a request. */
export interface ModelAnswer extends Answer {
  readonly broken?: BrokenEnd
  /** The share of the frames before the end that a broken stream has sent. */
  readonly share?: number
  /** Ids of the response, where the provider repeats them. */
  readonly responseNumber?: number
  readonly isGzip?: boolean
  /** The whole response is sent; the connection stays open until this resolves. */
  readonly closesAfter?: Promise<void>
  /** Blocks or items before the calls, as they are in a response. */
  readonly before?: readonly object[]
}

export interface ModelRequest {
  readonly dialect: DialectName
  readonly path: string
  /** The client's key. */
  readonly key: string
  readonly body: ChatBody
  readonly text: string
  /** The number of the request at this provider, from 1. */
  readonly number: number
  /** The client asked for an answer without calls. */
  readonly mustAnswer: boolean
}

export type Model = (request: ModelRequest) => ModelAnswer | Promise<ModelAnswer>

export interface ModelServer {
  readonly url: string
  readonly requests: ModelRequest[]
  close(): Promise<void>
}

const FINAL = 'This is what I found so far.'
/** What the model looks for when one of its calls was blocked. */
const INSTEAD = 'another way'

interface StepOptions {
  /** How many calls an answer has. */
  readonly calls?: number
  /** The model says something beside its calls. */
  readonly speaks?: boolean
  readonly reasons?: boolean
}

/** An answer with calls; `query` is what the first of them asks for. */
export function stepAnswer(number: number, query: string, { calls = 1, speaks, reasons }: StepOptions = {}): Answer {
  return {
    ...(speaks ? { text: `I look into it: ${query}.` } : {}),
    ...(reasons
      ? {
          reasoning: `thought ${number}`,
          blocks: [{ type: 'thinking', thinking: `thought ${number}`, signature: `signed ${number}` }],
        }
      : {}),
    calls: Array.from({ length: calls }, (_, at) => ({
      name: 'search',
      arguments: { query: at === 0 ? query : `${query}, part ${at}` },
    })),
  }
}

/** What the model does in a case. */
export interface Shape extends StepOptions {
  /** It looks for the same in each answer. */
  readonly loops?: boolean
  /** It calls again what was blocked. */
  readonly isStubborn?: boolean
}

let keys = 0

/** Returns a new key that tells `searcher` what to do with its requests. */
export function keyOf({ loops, isStubborn, calls = 1, speaks, reasons }: Shape): string {
  const words = [loops && 'loops', isStubborn && 'insists', speaks && 'speaks', reasons && 'reasons']
  return ['sk', calls, ...words.filter(Boolean), ++keys].join('-')
}

/**
 * A model that looks for something new in each answer, or always for the same, as the key says, until it must answer.
 * A block makes it try something else once.
 */
export const searcher: Model = ({ mustAnswer, number, text, key }) => {
  if (mustAnswer) return { text: FINAL }
  const calls = Number(/\d+/.exec(key)?.[0] ?? 1)
  const options = { calls, speaks: key.includes('speaks'), reasons: key.includes('reasons') }
  if (text.includes('[LOOP GUARD] Blocked') && !key.includes('insists'))
    return stepAnswer(number, `${INSTEAD} ${number}`, options)
  return stepAnswer(number, key.includes('loops') ? 'same' : `query ${number}`, options)
}

/** The frames of a stream, and how many of them are its end. */
function framesOf(request: ModelRequest, answer: ModelAnswer): { readonly frames: string[]; readonly closing: number } {
  const { dialect, body, number } = request
  const id = answer.responseNumber ?? number
  if (dialect === 'chat')
    return { frames: chunks(body, answer, id), closing: body.stream_options?.include_usage ? 3 : 2 }
  if (dialect === 'messages') return { frames: events(body, answer, id), closing: 2 }
  return { frames: eventTexts(responseEvents(wholeOf(request, answer) as Record<string, unknown>)), closing: 1 }
}

function wholeOf({ dialect, body, number }: ModelRequest, answer: ModelAnswer): object {
  const id = answer.responseNumber ?? number
  if (dialect === 'chat') return completion(body, answer, id)
  if (dialect === 'messages') return message(body, answer, id)
  const whole = responseObject(body, answer, id) as { output: object[] }
  return answer.before ? { ...whole, output: [...answer.before, ...whole.output] } : whole
}

const ERROR_FRAMES = {
  chat: 'data: {"error":{"message":"The server had an error","type":"server_error","code":null}}\n\n',
  messages: 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
  responses:
    'event: error\ndata: {"type":"error","sequence_number":99,"code":"server_error","message":"The server had an error","param":null}\n\n',
} as const

/** Sends the frames of a stream that does not come to its end. */
async function sendBroken(response: ServerResponse, request: ModelRequest, answer: ModelAnswer): Promise<void> {
  const { frames, closing } = framesOf(request, answer)
  const begun = frames.slice(0, frames.length - closing)
  const sent = begun.slice(0, Math.max(1, Math.ceil(begun.length * (answer.share ?? 1))))
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (const frame of sent) response.write(frame)
  if (answer.broken === 'error') response.write(ERROR_FRAMES[request.dialect])
  if (answer.broken !== 'cut') return void response.end()
  // All that was written must have left the process before the connection is destroyed.
  if (response.writableNeedDrain) await once(response, 'drain')
  response.write(': \n\n', () => response.destroy())
}

async function sendAnswer(response: ServerResponse, request: ModelRequest, answer: ModelAnswer): Promise<void> {
  if (answer.status !== undefined || answer.body !== undefined) {
    response.writeHead(answer.status ?? 200, { 'content-type': 'application/json', ...answer.headers })
    response.end(typeof answer.body === 'string' ? answer.body : JSON.stringify(answer.body ?? {}))
    return
  }
  const streams = request.body.stream === true
  if (answer.broken && streams) return sendBroken(response, request, answer)
  const text = streams ? framesOf(request, answer).frames.join('') : JSON.stringify(wholeOf(request, answer))
  const coding = answer.isGzip ? { 'content-encoding': 'gzip' } : {}
  response.writeHead(200, { 'content-type': streams ? 'text/event-stream' : 'application/json', ...coding })
  response.write(answer.isGzip ? gzipSync(text) : text)
  await answer.closesAfter
  response.end()
}

async function readRequest(request: IncomingMessage, number: number): Promise<ModelRequest> {
  const parts: Buffer[] = []
  for await (const part of request) parts.push(part as Buffer)
  const text = Buffer.concat(parts).toString()
  const path = request.url ?? ''
  const dialect = path.includes('/messages') ? 'messages' : path.includes('/responses') ? 'responses' : 'chat'
  const body = JSON.parse(text) as ChatBody
  const choice = body.tool_choice as string | { type?: string } | undefined
  const mustAnswer = !body.tools?.length || choice === 'none' || Object(choice).type === 'none'
  const key = request.headers['x-api-key'] ?? String(request.headers.authorization).replace('Bearer ', '')
  return { dialect, path, key: String(key), body, text, number, mustAnswer }
}

/** Starts a server of a model, on a free port. */
export async function startModel(model: Model): Promise<ModelServer> {
  const requests: ModelRequest[] = []
  let number = 0
  const { url, close } = await serve(async (request, response) => {
    const received = await readRequest(request, ++number)
    requests.push(received)
    await sendAnswer(response, received, await model(received))
  })
  return { url, requests, close }
}

/** One request as its agent saw it. */
export interface Seen {
  readonly sent: string
  readonly status: number
  /** As the response says it: the number and the limit. */
  readonly iteration: string | null
  readonly verdict: string | null
  /** The pattern of a loop that was found. */
  readonly loop: string | undefined
  readonly session: string | null
  readonly reason: unknown
  readonly hasFinalAnswer: unknown
  readonly answer: ReadAnswer
}

export interface AgentOptions {
  readonly url: string
  readonly dialect: DialectName
  readonly stream: boolean
  readonly key: string
  /** The session's name; without one the session is derived. */
  readonly session?: string | undefined
  readonly reducer: Reducer
  readonly headers?: Readonly<Record<string, string>>
  readonly task?: string
  /** The client goes on as soon as it has read the last event of a stream, without waiting for the response's end. */
  readonly leavesEarly?: boolean
  /** The result of a call of the answer with this number. */
  readonly result?: (query: string, number: number) => string
  /** It keeps an answer that did not end, and runs its calls that came whole; by default it drops such an answer. */
  readonly keepsBroken?: boolean
  /** What the harness adds after the results of an answer, and keeps. */
  readonly after?: (number: number) => readonly Entry[]
  /** What the client makes of its history before each request; by default all as it came. */
  readonly form?: (history: readonly Entry[]) => readonly Entry[]
}

/** An agent in the middle of its work. */
export interface Agent {
  readonly history: readonly Entry[]
  /** All requests so far. */
  readonly seen: readonly Seen[]
  /** Sends one request, and runs the tools that the answer calls. */
  step(): Promise<Seen>
  /** Sends a transcript as it is, and changes nothing. */
  send(transcript: readonly Entry[]): Promise<Seen>
  /** Adds something to the history. */
  say(...entries: readonly Entry[]): void
  /** Puts another history in place of the whole one. */
  replace(history: readonly Entry[]): void
}

export const SYSTEM: Entry = { kind: 'system', text: 'You are a research agent.' }
export const human = (text: string): Entry => ({ kind: 'human', text })
export const note = (text: string): Entry => ({ kind: 'note', text })

const queryOf = (json: string): string => String((JSON.parse(json) as { query?: unknown }).query)

/** The results of all calls of an answer. */
export function resultsOf(
  { calls, number = 0 }: AnswerEntry,
  result: NonNullable<AgentOptions['result']> = (query) => `Nothing new was found about ${query}.`,
): Entry[] {
  return calls.map(({ id, name, arguments: json }) => ({
    kind: 'result',
    id,
    name,
    text: result(queryOf(json), number),
  }))
}

/** Returns what an agent keeps of an answer. */
export function entryOf({ text, calls, reasoning, compaction }: ReadAnswer, number: number): AnswerEntry {
  return { kind: 'answer', text, calls, reasoning, compaction, number }
}

/** Sends one transcript, and returns what its agent sees of Governor. */
export async function sendTranscript(
  { url, dialect, stream, key, session, headers, leavesEarly }: Omit<AgentOptions, 'reducer'>,
  transcript: readonly Entry[],
): Promise<Seen> {
  const form = FORMS[dialect]
  const response = await fetch(`${url}${form.path}`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      ...form.headers(key),
      ...(session === undefined ? {} : { 'x-governor-session': session }),
      ...headers,
    },
    body: JSON.stringify({ ...form.body(transcript), ...(stream ? { stream: true } : {}) }),
  })
  const streams = stream && (response.headers.get('content-type') ?? '').startsWith('text/event-stream')
  let text = ''
  const decoder = new TextDecoder()
  const reader = response.body?.getReader()
  try {
    for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
      text += decoder.decode(part.value, { stream: true })
      if (leavesEarly && streams && readAnswer(dialect, text, true).hasEnded) break
    }
  } catch {
    // The connection was cut: what came before counts.
  }
  const answer = readAnswer(dialect, text, streams)
  return {
    sent: lettersOf(transcript),
    status: response.status,
    iteration: response.headers.get('x-governor-iteration'),
    verdict: response.headers.get('x-governor-verdict'),
    loop: response.headers.get('x-governor-loop')?.split(';')[0],
    session: response.headers.get('x-governor-session'),
    reason: answer.governor?.['terminal_reason'],
    hasFinalAnswer: answer.governor?.['has_final_answer'],
    answer,
  }
}

/** Begins an agent with a task of a human. */
export function createAgent(options: AgentOptions): Agent {
  const { reducer, task = 'Find out everything.', result, after = () => [], form = (history) => history } = options
  let history: readonly Entry[] = [SYSTEM, human(task)]
  let answers = 0
  const seen: Seen[] = []
  return {
    get history() {
      return history
    },
    seen,
    send: (transcript) => sendTranscript(options, transcript),
    say(...entries) {
      history = [...history, ...entries]
    },
    replace(next) {
      history = next
    },
    async step() {
      const shortened = reducer.reduce(history)
      if (reducer.forgets) history = shortened
      const one = await sendTranscript(options, form(shortened))
      seen.push(one)
      if (!one.answer.hasEnded && !options.keepsBroken) return one
      answers++
      const entry = entryOf(one.answer, answers)
      const more = entry.calls.length > 0 ? [...resultsOf(entry, result), ...after(answers)] : []
      history = [...history, ...(entry.text || entry.calls.length > 0 || entry.compaction ? [entry] : []), ...more]
      return one
    },
  }
}

/** Lets an agent make requests until an answer calls no tool, or `max` requests were made; returns all of them. */
export async function runShortened(agent: Agent, max: number): Promise<readonly Seen[]> {
  while (agent.seen.length < max) {
    const { answer } = await agent.step()
    if (answer.calls.length === 0) break
  }
  return agent.seen
}

/** The number of a request in its run, as the response says it. */
export const numberIn = ({ iteration }: Seen): number => Number(iteration?.split('/')[0] ?? Number.NaN)

/** What the loop guard did at each request: `in place` stands where it blocked a call, also in a stream that had begun. */
export const verdictsOf = (seen: readonly Seen[]): readonly string[] =>
  seen.map(({ verdict, loop, reason, answer: { calls } }) => {
    const isReplaced = calls.some((call) => queryOf(call.arguments).startsWith(INSTEAD))
    return [verdict, loop, reason, isReplaced ? 'in place' : undefined].filter((part) => part !== undefined).join(' ')
  })

/** Writes requests for a person: one line for each, with its transcript in letters. */
export const tableOf = (seen: readonly Seen[]): string =>
  seen
    .map(({ sent, iteration, verdict, loop, reason }, at) =>
      [`${at + 1}:`, iteration, verdict, loop, reason, '|', sent].filter((part) => part != null).join(' '),
    )
    .join('\n')

/** A setting of an agent: its title, and options of an agent. */
export type Setting = readonly [
  string,
  { readonly dialect: DialectName; readonly stream: boolean; readonly session: string | undefined },
]

/**
 * Every dialect, whole and streamed, with a session id and without one: half of all combinations, in which any two of
 * these meet.
 */
export const SETTINGS: readonly Setting[] = DIALECTS.flatMap((dialect, at) =>
  [true, false].map((stream): Setting => {
    const isNamed = stream === (at % 2 === 0)
    return [
      `${dialect}, ${stream ? 'streamed' : 'whole'}, ${isNamed ? 'named' : 'without an id'}`,
      { dialect, stream, session: isNamed ? 'session' : undefined },
    ]
  }),
)
