/** A scripted model behind a Chat Completions endpoint that streams: it calls tools as long as it is offered some. */
import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import type OpenAI from 'openai'

type Body = OpenAI.ChatCompletionCreateParams

export interface Script {
  /** The calls that it makes in order, again from the start after the last. */
  readonly calls: readonly { readonly name: string; readonly arguments: Readonly<Record<string, unknown>> }[]
  /** Its answer if it is offered no tools or must choose none. */
  readonly answer: string
  /** Its answer if it reads that its call was blocked; unset: it calls on. */
  readonly whenBlocked?: string
}

export type ScriptedProvider = Awaited<ReturnType<typeof startScriptedProvider>>

/** Returns the message of the model: a call as long as it is offered tools, else its answer. */
function answerTo(body: Body, number: number, { calls, answer, whenBlocked }: Script) {
  const last = body.messages.at(-1)?.content
  const isBlocked = typeof last === 'string' && last.startsWith('[LOOP GUARD] Blocked')
  if (whenBlocked !== undefined && isBlocked) return { role: 'assistant', content: whenBlocked }
  const call = calls[(number - 1) % calls.length]
  if (!body.tools || body.tool_choice === 'none' || !call) return { role: 'assistant', content: answer }
  const called = { name: call.name, arguments: JSON.stringify(call.arguments) }
  const tool_calls = [{ index: 0, id: `call_${number}`, type: 'function', function: called }]
  return { role: 'assistant', content: null, tool_calls }
}

export async function startScriptedProvider(script: Script) {
  /** All requests so far as the model got them, oldest first. */
  const received: Body[] = []
  const server = http.createServer(async (request, response) => {
    const body: Body = JSON.parse(await text(request))
    const number = received.push(body)
    const message = answerTo(body, number, script)
    const head = { id: `chatcmpl-${number}`, created: Math.floor(Date.now() / 1000), model: body.model }
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const choice of [
      { delta: message, finish_reason: null },
      { delta: {}, finish_reason: message.tool_calls ? 'tool_calls' : 'stop' },
    ]) {
      const chunk = { ...head, object: 'chat.completion.chunk', choices: [{ index: 0, ...choice }] }
      response.write(`data: ${JSON.stringify(chunk)}\n\n`)
    }
    response.end('data: [DONE]\n\n')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    /** The base URL without a path. */
    url: `http://127.0.0.1:${port}`,
    received,
    async close(): Promise<void> {
      server.closeAllConnections()
      await once(server.close(), 'close')
    },
  }
}
