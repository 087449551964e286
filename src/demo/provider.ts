/** A scripted model behind a real Chat Completions endpoint: it calls tools as long as it is offered some. */
import { once } from 'node:events'
import http, { type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type OpenAI from 'openai'

type Body = OpenAI.ChatCompletionCreateParams

/** A tool call of the script. */
export interface ScriptedCall {
  readonly name: string
  readonly arguments: Readonly<Record<string, unknown>>
}

/** The behaviour of the model. */
export interface Script {
  /** The calls that it makes in order, again from the start after the last. */
  readonly calls: readonly ScriptedCall[]
  /** Its answer if it is offered no tools or must choose none. */
  readonly answer: string
  /** Its answer if it reads that its call was blocked; unset: it calls on. */
  readonly whenBlocked?: string
}

/** A running scripted model. */
export interface ScriptedProvider {
  /** The base URL without a path: `http://127.0.0.1:port`. */
  readonly url: string
  /** All requests so far as the model got them, oldest first. */
  readonly received: readonly Body[]
  /** Closes the server and all its connections. */
  close(): Promise<void>
}

interface Reply {
  readonly content: string | null
  readonly tool_calls?: readonly object[]
  readonly finish: 'tool_calls' | 'stop'
}

function replyTo(body: Body, number: number, { calls, answer, whenBlocked }: Script): Reply {
  const last = body.messages.at(-1)?.content
  const isBlocked = typeof last === 'string' && last.startsWith('[LOOP GUARD] Blocked')
  if (whenBlocked !== undefined && isBlocked) return { content: whenBlocked, finish: 'stop' }
  const call = calls[(number - 1) % calls.length]
  if (!body.tools || body.tool_choice === 'none' || !call) return { content: answer, finish: 'stop' }
  const { name, arguments: values } = call
  const calledFunction = { name, arguments: JSON.stringify(values) }
  return {
    content: null,
    tool_calls: [{ id: `call_${number}`, type: 'function', function: calledFunction }],
    finish: 'tool_calls',
  }
}

function send(response: ServerResponse, body: Body, number: number, { finish, ...message }: Reply): void {
  const head = { id: `chatcmpl-${number}`, created: Math.floor(Date.now() / 1000), model: body.model }
  if (!body.stream) {
    const choices = [{ index: 0, message: { role: 'assistant', ...message }, finish_reason: finish }]
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify({ ...head, object: 'chat.completion', choices }))
    return
  }
  const calls = message.tool_calls?.map((call, index) => ({ index, ...call }))
  const deltas = [
    {
      delta: { role: 'assistant', ...message, ...(calls ? { tool_calls: calls } : {}) },
      finish_reason: null,
    },
    { delta: {}, finish_reason: finish },
  ]
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (const delta of deltas) {
    const chunk = { ...head, object: 'chat.completion.chunk', choices: [{ index: 0, ...delta }] }
    response.write(`data: ${JSON.stringify(chunk)}\n\n`)
  }
  response.end('data: [DONE]\n\n')
}

/** Starts the model on a free port of the loopback address. */
export async function startScriptedProvider(script: Script): Promise<ScriptedProvider> {
  const received: Body[] = []
  const server = http.createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = JSON.parse(Buffer.concat(chunks).toString()) as Body
    const number = received.push(body)
    send(response, body, number, replyTo(body, number, script))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    received,
    async close() {
      const closed = once(server, 'close')
      server.close()
      server.closeAllConnections()
      await closed
    },
  }
}
