/** A provider that does what a script says, over real sockets and in the real wire formats of its APIs. */
import { once } from 'node:events'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { geminiReply } from './gemini.ts'
import { events, message } from './messages.ts'
import { createKept, eventTexts, type Item, responseEvents, responseObject } from './responses.ts'

/** A request as the provider got it. */
export interface Received {
  readonly method: string
  readonly target: string
  readonly rawHeaders: readonly string[]
  readonly body: Buffer
  /** The body as JSON. */
  readonly json: ChatBody
  /** For Responses: everything that the model sees, including history that the provider keeps. */
  readonly items?: readonly Item[]
  header(name: string): string | undefined
}

export interface ChatMessage {
  readonly role: string
  readonly content?: unknown
  readonly tool_calls?: readonly {
    readonly id: string
    readonly function: { readonly name: string; readonly arguments: string }
  }[]
  readonly tool_call_id?: string
}

export interface ChatBody {
  readonly model: string
  readonly messages: readonly ChatMessage[]
  readonly stream?: boolean
  readonly stream_options?: { readonly include_usage?: boolean }
  readonly tools?: readonly unknown[]
  readonly tool_choice?: unknown
  readonly [key: string]: unknown
}

/** A call of the model. `isCustom`: of a tool that takes a text, as in Responses. */
export interface ScriptedCall {
  readonly id?: string
  readonly name: string
  readonly arguments: unknown
  /** Of tools, as in Responses. */
  readonly namespace?: string
  readonly isCustom?: true
}

/** The model's answer. */
export interface Answer {
  readonly text?: string
  /** Encrypted, as in Responses. */
  readonly reasoning?: string
  readonly calls?: readonly ScriptedCall[]
  readonly finish?: string
  /** Content blocks, or items of a response, before the others, if the format has them. */
  readonly blocks?: readonly object[]
  /** What a response of Gemini's API, or of Messages, states, in place of the usual. */
  readonly usage?: Readonly<Record<string, number>>
  /** Another reply instead: an error, or a broken body. */
  readonly status?: number
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
}

export type Script = (request: Received, number: number) => Answer | Promise<Answer>

export interface Provider {
  readonly url: string
  /** Every POST so far, oldest first. */
  readonly requests: Received[]
  /** Connections open now. */
  readonly sockets: ReadonlySet<Socket>
  close(): Promise<void>
}

async function receive(request: IncomingMessage): Promise<Received> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  const body = Buffer.concat(chunks)
  return {
    method: request.method ?? '',
    target: request.url ?? '',
    rawHeaders: request.rawHeaders,
    body,
    get json() {
      return JSON.parse(body.toString()) as ChatBody
    },
    header: (name) => {
      const value = request.headers[name]
      return Array.isArray(value) ? value.join(', ') : value
    },
  }
}

const USAGE = { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 }

function toolCalls(answer: Answer, number: number) {
  return (answer.calls ?? []).map((call, index) => ({
    id: call.id ?? `call_${number}_${index}`,
    type: 'function',
    function: {
      name: call.name,
      arguments: typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments),
    },
  }))
}

/** A Chat Completions response to a request. */
export function completion(request: ChatBody, answer: Answer, number: number): object {
  const calls = toolCalls(answer, number)
  return {
    id: `chatcmpl-${number}`,
    object: 'chat.completion',
    created: 1_760_000_000,
    model: request.model,
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: answer.text ?? null,
          refusal: null,
          ...(calls.length > 0 ? { tool_calls: calls } : {}),
        },
        logprobs: null,
        finish_reason: answer.finish ?? (calls.length > 0 ? 'tool_calls' : 'stop'),
      },
    ],
    usage: USAGE,
  }
}

/** The same as a stream of chunks, text word by word. */
export function chunks(request: ChatBody, answer: Answer, number: number): string[] {
  const base = {
    id: `chatcmpl-${number}`,
    object: 'chat.completion.chunk',
    created: 1_760_000_000,
    model: request.model,
  }
  const frame = (choices: unknown, more: object = {}) => `data: ${JSON.stringify({ ...base, choices, ...more })}\n\n`
  const delta = (value: object, finish: string | null = null) =>
    frame([{ index: 0, delta: value, finish_reason: finish }])
  const words = (answer.text ?? '').split(/(?<= )/).filter((word) => word !== '')
  const calls = toolCalls(answer, number)
  return [
    delta({ role: 'assistant', content: '' }),
    ...words.map((word) => delta({ content: word })),
    ...calls.flatMap(({ id, type, function: { name, arguments: text } }, index) => [
      delta({ tool_calls: [{ index, id, type, function: { name, arguments: '' } }] }),
      delta({ tool_calls: [{ index, function: { arguments: text } }] }),
    ]),
    delta({}, answer.finish ?? (calls.length > 0 ? 'tool_calls' : 'stop')),
    ...(request.stream_options?.include_usage ? [frame([], { usage: USAGE })] : []),
    'data: [DONE]\n\n',
  ]
}

/** Sends a body, or events if the client asked for them. */
function sendSuccess(
  response: ServerResponse,
  streams: boolean,
  headers: Answer['headers'],
  whole: object,
  events: readonly string[],
): void {
  response.writeHead(200, { 'content-type': streams ? 'text/event-stream' : 'application/json', ...headers })
  for (const event of streams ? events : [JSON.stringify(whole)]) response.write(event)
  response.end()
}

function send(response: ServerResponse, received: Received, answer: Answer, number: number): void {
  if (answer.status !== undefined || answer.body !== undefined) {
    const isText = typeof answer.body === 'string' || Buffer.isBuffer(answer.body)
    const body = isText ? answer.body : JSON.stringify(answer.body ?? {})
    response.writeHead(answer.status ?? 200, { 'content-type': 'application/json', ...answer.headers })
    response.end(body)
    return
  }
  const { json } = received
  const gemini = geminiReply(received, answer, number)
  if (gemini) {
    response.writeHead(200, { 'content-type': gemini.type, ...answer.headers })
    for (const piece of gemini.pieces) response.write(piece)
    response.end()
    return
  }
  const streams = json.stream === true
  if (received.items) {
    const whole = responseObject(json, answer, number)
    sendSuccess(response, streams, answer.headers, whole, eventTexts(responseEvents(whole)))
    return
  }
  const isMessages = /(?:\/v1\/messages|awPredict)(?:$|\?)/.test(received.target)
  const [whole, streamed] = isMessages ? [message, events] : [completion, chunks]
  const texts = streams ? streamed(json, answer, number) : []
  sendSuccess(response, streams, answer.headers, whole(json, answer, number), texts)
}

/** Starts a server on a free port of the loopback address. */
export async function serve(
  handle: (request: IncomingMessage, response: ServerResponse) => void,
): Promise<{ url: string; server: http.Server; sockets: Set<Socket>; close(): Promise<void> }> {
  // Never closes an idle connection: a slow machine would meet it in the middle of being used again.
  const server = http.createServer({ keepAliveTimeout: 0 }, handle)
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    server,
    sockets,
    async close() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function isResponses(target: string): boolean {
  return /\/responses(?:\?|$)/.test(target)
}

/** Starts a scripted provider; `script` answers request after request, numbered from 1. */
export async function startProvider(script: Script): Promise<Provider> {
  const requests: Received[] = []
  const kept = createKept()
  const { url, sockets, close } = await serve(async (request, response) => {
    const received = await receive(request)
    if (received.method !== 'POST') {
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"object":"list","data":[]}')
      return
    }
    const opened = isResponses(received.target) ? kept.open(received.json) : undefined
    const seen = opened && 'items' in opened ? Object.assign(received, opened) : received
    requests.push(seen)
    const number = requests.length
    const answer = opened && 'status' in opened ? opened : await script(seen, number)
    if (seen.items && answer.status === undefined && answer.body === undefined)
      kept.close(seen.json, seen.items, responseObject(seen.json, answer, number))
    send(response, seen, answer, number)
  })
  return { url, requests, sockets, close }
}

/** A model that calls one tool for ever, and answers only when it is given none or told not to choose any. */
export function runaway(name = 'search', answer = 'This is what I found so far.'): Script {
  return ({ json }, number) =>
    !json.tools || json.tool_choice === 'none'
      ? { text: answer }
      : { calls: [{ name, arguments: { query: `q${number}` } }] }
}
