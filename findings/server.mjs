/**
 * A scripted model server for the scripts beside it: Chat Completions and Responses, whole and streamed; a stream of Responses has an
 * event for each finished item and the last one. What is no POST is not found.
 * `answer(body, number)` returns what the model says to a request, numbered from 1: `{id, text, calls: [{id, name, arguments}], finish,
 * reason, usage}`. `finish` is `finish_reason`, or the status of a response; its `reason` is why it is incomplete. A call whose arguments
 * were cut has their text as `cut`. A stream states its usage where it is asked for it, or where the answer has one, and is one delta, or
 * those that the answer has as `deltas`; `usageIn` moves the usage from a chunk of its own to `the last choice`, or has it in
 * `every chunk`. An answer with a `status`, and perhaps `headers`, is an error.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync } from 'node:fs'
import http from 'node:http'

const callId = (number, index) => `call_${number}_${index}`

function chatMessage({ text = null, calls = [] }, number) {
  const tool_calls = calls.map((call, index) => ({
    id: call.id ?? callId(number, index),
    type: 'function',
    function: { name: call.name, arguments: call.cut ?? JSON.stringify(call.arguments) },
  }))
  return { role: 'assistant', content: text, ...(calls.length > 0 ? { tool_calls } : {}) }
}

function chat(request, answer, number) {
  const message = chatMessage(answer, number)
  const finish = answer.finish ?? (message.tool_calls ? 'tool_calls' : 'stop')
  const usage = answer.usage ?? { prompt_tokens: 1000, completion_tokens: 7, total_tokens: 1007 }
  const base = { id: answer.id ?? `chatcmpl-${number}`, created: 1_760_000_000, model: request.model }
  if (!request.stream) {
    const choices = [{ index: 0, message, finish_reason: finish }]
    return JSON.stringify({ ...base, object: 'chat.completion', choices, usage })
  }
  const chunk = (choices, more = {}) =>
    `data: ${JSON.stringify({ ...base, object: 'chat.completion.chunk', choices, ...more })}\n\n`
  const tool_calls = message.tool_calls?.map((call, index) => ({ index, ...call }))
  const beside = (...places) => (places.includes(answer.usageIn) ? { usage } : {})
  const isOwn = answer.usageIn !== 'the last choice' && (answer.usage || request.stream_options?.include_usage)
  const deltas = answer.deltas ?? [{ ...message, ...(tool_calls ? { tool_calls } : {}) }]
  return [
    ...deltas.map((delta) => chunk([{ index: 0, delta, finish_reason: null }], beside('every chunk'))),
    chunk([{ index: 0, delta: {}, finish_reason: finish }], beside('every chunk', 'the last choice')),
    isOwn ? chunk([], { usage }) : '',
    'data: [DONE]\n\n',
  ].join('')
}

function response(request, { text, calls = [], finish = 'completed', reason = 'max_output_tokens', usage }, number) {
  const content = [{ type: 'output_text', text, annotations: [], logprobs: [] }]
  const said = { id: `msg_${number}`, type: 'message', role: 'assistant', status: finish, content }
  const called = calls.map((call, index) => ({
    id: `fc_${number}_${index}`,
    type: 'function_call',
    status: 'completed',
    call_id: callId(number, index),
    name: call.name,
    arguments: JSON.stringify(call.arguments),
  }))
  const made = {
    id: `resp_${number}`,
    object: 'response',
    created_at: 1_760_000_000,
    completed_at: 1_760_000_001,
    model: request.model,
    status: finish,
    error: null,
    incomplete_details: finish === 'incomplete' ? { reason } : null,
    output: [...(text === undefined ? [] : [said]), ...called],
    parallel_tool_calls: true,
    tool_choice: 'auto',
    tools: [],
    temperature: null,
    top_p: null,
    presence_penalty: null,
    frequency_penalty: null,
    metadata: null,
    instructions: null,
    usage: {
      input_tokens: 1000,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: 7,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 1007,
      ...usage,
    },
  }
  if (!request.stream) return JSON.stringify(made)
  const events = [
    ...made.output.map((item, output_index) => ({ type: 'response.output_item.done', output_index, item })),
    { type: `response.${finish}`, response: made },
  ].map((event, sequence_number) => `data: ${JSON.stringify({ ...event, sequence_number })}\n\n`)
  return `${events.join('')}data: [DONE]\n\n`
}

/** Starts the server on a free port; returns its base URL and the bodies of all requests, oldest first. */
export async function serve(answer) {
  const bodies = []
  const server = http.createServer(async (request, reply) => {
    let text = ''
    for await (const piece of request) text += piece
    if (request.method !== 'POST') return reply.writeHead(404).end('{}')
    const body = JSON.parse(text)
    const number = bodies.push(body)
    const write = request.url.endsWith('/responses') ? response : chat
    const { status, headers, ...said } = answer(body, number)
    if (status) return reply.writeHead(status, headers).end('{"error":{"message":"scripted"}}')
    reply.writeHead(200, { 'content-type': body.stream ? 'text/event-stream' : 'application/json' })
    reply.end(write(body, said, number))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  server.unref()
  return { url: `http://127.0.0.1:${server.address().port}/v1`, bodies }
}

/**
 * Starts a server that answers as Anthropic's Messages do, whole: `answer(body, number)` returns
 * `{text, calls: [{name, input}], stop_reason, usage}`.
 */
export async function serveMessages(answer) {
  const bodies = []
  const server = http.createServer(async (request, reply) => {
    let text = ''
    for await (const piece of request) text += piece
    const body = JSON.parse(text)
    const number = bodies.push(body)
    const { text: said, calls = [], ...rest } = answer(body, number)
    const uses = calls.map((call, index) => ({ type: 'tool_use', id: `toolu_${number}_${index}`, ...call }))
    const content = [...(said ? [{ type: 'text', text: said }] : []), ...uses]
    reply.writeHead(200, { 'content-type': 'application/json' })
    reply.end(
      JSON.stringify({
        id: `msg_${number}`,
        type: 'message',
        role: 'assistant',
        model: body.model,
        content,
        stop_sequence: null,
        ...rest,
      }),
    )
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  server.unref()
  return { url: `http://127.0.0.1:${server.address().port}/v1`, bodies }
}

/**
 * Starts a server that answers as Gemini's API does: `answer(body, number)` returns `{text, calls: [{name, args}], pieces,
 * finishReason}`; a stream has a chunk for each of the `pieces`, which are texts, or null for one without parts, or else one. Its
 * usage states a token for four characters of the request.
 */
export async function serveGemini(answer) {
  const bodies = []
  const server = http.createServer(async (request, reply) => {
    let body = ''
    for await (const piece of request) body += piece
    const number = bodies.push(JSON.parse(body))
    const { text, calls = [], pieces, finishReason = 'STOP' } = answer(bodies.at(-1), number)
    const parts = [...(text ? [{ text }] : []), ...calls.map((functionCall) => ({ functionCall }))]
    const promptTokenCount = Math.ceil(body.length / 4)
    const usageMetadata = { promptTokenCount, candidatesTokenCount: 7, totalTokenCount: promptTokenCount + 7 }
    const chunk = (parts, isLast) => ({
      candidates: [
        {
          content: { role: 'model', ...(parts.length > 0 ? { parts } : {}) },
          ...(isLast ? { finishReason } : {}),
          index: 0,
        },
      ],
      usageMetadata,
    })
    if (!request.url.includes(':streamGenerateContent')) {
      reply.writeHead(200, { 'content-type': 'application/json' })
      return reply.end(JSON.stringify(chunk(parts, true)))
    }
    const chunks = pieces?.map((text) => (text === null ? [] : [{ text }])) ?? [parts]
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const [index, parts] of chunks.entries())
      reply.write(`data: ${JSON.stringify(chunk(parts, index === chunks.length - 1))}\n\n`)
    reply.end()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  server.unref()
  return { url: `http://127.0.0.1:${server.address().port}`, bodies }
}

/**
 * Starts a server that streams as Anthropic's Messages do: `answer(body, number)` returns `{text, calls: [{name, input}], usage,
 * stop_reason, headers}`, where `stop_reason` is set for an answer that is cut. Other requests than for messages are not found.
 */
export async function serveMessageStreams(answer) {
  const bodies = []
  const server = http.createServer(async (request, reply) => {
    let body = ''
    for await (const piece of request) body += piece
    if (!/^\/v1\/messages($|\?)/.test(request.url)) return reply.writeHead(404).end('{}')
    const number = bodies.push(JSON.parse(body))
    const { model } = bodies.at(-1)
    const given = answer(bodies.at(-1), number)
    const { text, calls = [], usage = { input_tokens: 1000, output_tokens: 7 } } = given
    const blocks = [
      ...[text ?? []].flat().map((text) => [
        { type: 'text', text: '' },
        { type: 'text_delta', text },
      ]),
      ...calls.map(({ name, input }, index) => [
        { type: 'tool_use', id: `toolu_${number}_${index}`, name, input: {} },
        { type: 'input_json_delta', partial_json: JSON.stringify(input) },
      ]),
    ]
    const base = { id: `msg_${number}`, type: 'message', role: 'assistant', model, content: [] }
    const stop_reason = given.stop_reason ?? (calls.length > 0 ? 'tool_use' : 'end_turn')
    const events = [
      { type: 'message_start', message: { ...base, stop_reason: null, stop_sequence: null, usage } },
      ...blocks.flatMap(([content_block, delta], index) => [
        { type: 'content_block_start', index, content_block },
        { type: 'content_block_delta', index, delta },
        { type: 'content_block_stop', index },
      ]),
      { type: 'message_delta', delta: { stop_reason, stop_sequence: null }, usage },
      { type: 'message_stop' },
    ]
    reply.writeHead(200, { 'content-type': 'text/event-stream', ...given.headers })
    reply.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(''))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  server.unref()
  return { url: `http://127.0.0.1:${server.address().port}`, bodies }
}

/** Returns a port of this machine that nothing listens on. */
export async function freePort() {
  const probe = http.createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address()
  probe.close()
  return port
}

/** Starts the Portkey gateway that is installed in a folder, and waits until it answers. */
export async function startPortkey(folder) {
  const port = await freePort()
  const program = 'node_modules/@portkey-ai/gateway/build/start-server.js'
  const child = spawn(process.execPath, [program, `--port=${port}`, '--headless'], { cwd: folder, stdio: 'ignore' })
  const url = `http://127.0.0.1:${port}`
  while (
    !(await fetch(url).then(
      () => true,
      () => false,
    ))
  )
    await new Promise((resolve) => setTimeout(resolve, 200))
  const ask = (headers, body) =>
    fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: 'Bearer k', ...headers },
      body: JSON.stringify(body),
    })
  return { ask, end: () => child.kill() }
}

/**
 * Runs Claude Code, which is installed here, in a home folder of its own; returns its exit code, what it printed, and its
 * environment.
 */
export async function runClaude(url, folder, args) {
  mkdirSync(folder, { recursive: true })
  const env = {
    PATH: process.env.PATH,
    HOME: folder,
    ANTHROPIC_BASE_URL: url,
    ANTHROPIC_API_KEY: 'k',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_AUTOUPDATER: '1',
  }
  const program = `${process.cwd()}/node_modules/.bin/claude`
  const child = spawn(program, args, { cwd: folder, env, stdio: ['ignore', 'pipe', 'ignore'] })
  let printed = ''
  child.stdout.on('data', (data) => {
    printed += data
  })
  const [code] = await once(child, 'close')
  return { code, printed, env }
}

/** Prints `seen`, and ends with 0 if it equals `expected`, else with 1. */
export function verdict(seen, expected) {
  const holds = JSON.stringify(seen) === JSON.stringify(expected)
  const end = holds ? 'It is still so.' : `It has changed. It was: ${JSON.stringify(expected, null, 2)}`
  process.stdout.write(`${JSON.stringify(seen, null, 2)}\n${end}\n`)
  process.exitCode = holds ? 0 : 1
}
