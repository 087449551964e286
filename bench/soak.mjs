/**
 * Sends 200,000 requests of 50,000 sessions through the built program and samples its memory from outside, every second:
 *
 *   npm run soak -- [--sessions 50000] [--agents 64] [--pause 0] [--minutes N] [--out docs/images/soak]
 *
 * Writes OUT.csv and OUT.svg, and prints a table. `--pause`: milliseconds that an agent waits before each request;
 * `--minutes`: begins no session after that. Each session is an agent that calls a tool for ever: three iterations and the
 * last answer of its run, every other one streamed. @throws if any answer is not the one that is due.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { drawSoak } from './soak-chart.mjs'

const { values } = parseArgs({
  options: {
    sessions: { type: 'string', default: '50000' },
    agents: { type: 'string', default: '64' },
    pause: { type: 'string', default: '0' },
    minutes: { type: 'string', default: 'Infinity' },
    out: { type: 'string', default: 'docs/images/soak' },
  },
})
const SESSIONS = Number(values.sessions)
const AGENTS = Number(values.agents)
const PAUSE_MS = Number(values.pause)
const RUN_MS = Number(values.minutes) * 60_000
/** The most samples that are written. */
const MAX_ROWS = 1_000
const BUDGET = 3
const SAMPLE_MS = 1_000
const MB = 1_000_000

const TOOLS = [{ type: 'function', function: { name: 'search', parameters: { type: 'object', properties: {} } } }]
const SYSTEM = {
  role: 'system',
  content: `You are an agent. ${'Follow the rules of the house. '.repeat(20)}`,
}
const USAGE = { prompt_tokens: 700, completion_tokens: 20, total_tokens: 720 }

/** A message of the model: a call, or its last answer where it may call nothing. */
function messageFor({ tool_choice: choice, tools }, number) {
  if (!tools || choice === 'none') return { role: 'assistant', content: 'This is all that I found.' }
  const call = { name: 'search', arguments: `{"query":"${number}"}` }
  return {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: `call_${number}`, type: 'function', function: call }],
  }
}

function bodyFor(request, number) {
  const message = messageFor(request, number)
  const finish_reason = message.content === null ? 'tool_calls' : 'stop'
  const base = { id: `chatcmpl-${number}`, created: 1_760_000_000, model: request.model }
  if (!request.stream)
    return JSON.stringify({
      ...base,
      object: 'chat.completion',
      choices: [{ index: 0, message, finish_reason }],
      usage: USAGE,
    })
  const calls = message.tool_calls?.map((call, index) => ({ index, ...call }))
  const delta = { role: 'assistant', content: message.content, ...(calls ? { tool_calls: calls } : {}) }
  const object = 'chat.completion.chunk'
  const chunks = [
    { ...base, object, choices: [{ index: 0, delta, finish_reason: null }] },
    { ...base, object, choices: [{ index: 0, delta: {}, finish_reason }] },
    { ...base, object, choices: [], usage: USAGE },
  ]
  return `${chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join('')}data: [DONE]\n\n`
}

async function textOf(stream) {
  const parts = []
  for await (const part of stream) parts.push(part)
  return Buffer.concat(parts).toString()
}

async function startProvider() {
  let number = 0
  const server = http.createServer({ keepAliveTimeout: 0 }, async (request, response) => {
    const json = JSON.parse(await textOf(request))
    const type = json.stream ? 'text/event-stream' : 'application/json'
    response.writeHead(200, { 'content-type': type }).end(bodyFor(json, ++number))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    close() {
      server.close()
      server.closeAllConnections()
    },
  }
}

async function startGovernor(upstream) {
  const folder = mkdtempSync(join(tmpdir(), 'governor-soak-'))
  const file = join(folder, 'governor.yaml')
  const config = {
    server: { port: 0 },
    upstreams: { openai: { url: upstream } },
    budget: { max_iterations: BUDGET },
  }
  writeFileSync(file, JSON.stringify(config))
  const child = spawn(process.execPath, ['dist/main.js', 'start', '--config', file], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {},
  })
  process.once('exit', () => {
    child.kill('SIGKILL')
    rmSync(folder, { recursive: true, force: true })
  })
  for await (const line of createInterface(child.stdout)) {
    const { msg, address } = JSON.parse(line)
    if (msg !== 'listening') continue
    child.stdout.resume()
    return { child, url: address }
  }
  throw new Error('Governor did not start')
}

const agent = new http.Agent({ keepAlive: true, maxSockets: AGENTS })

/** Sends one request; returns the answer's headers and the model's message. */
async function call(url, session, messages, stream) {
  const body = JSON.stringify({
    model: 'gpt-soak',
    messages,
    tools: TOOLS,
    ...(stream ? { stream, stream_options: { include_usage: true } } : {}),
  })
  const headers = {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
    authorization: 'Bearer sk-soak',
    'x-governor-session': session,
  }
  const request = http.request(`${url}/v1/chat/completions`, { method: 'POST', agent, headers })
  request.end(body)
  const [response] = await once(request, 'response')
  const text = await textOf(response)
  if (response.statusCode !== 200) throw new Error(`${response.statusCode} ${text}`)
  const first = JSON.parse(stream ? text.slice(6, text.indexOf('\n\n')) : text).choices[0]
  const { content, tool_calls } = stream ? first.delta : first.message
  return { headers: response.headers, message: { role: 'assistant', content, tool_calls } }
}

/** One session from its first request to the last answer of its run. */
async function converse(url, number, sent) {
  const session = `session ${number}`
  const messages = [SYSTEM, { role: 'user', content: `Task ${number}: find out everything.` }]
  for (let at = 1; at <= BUDGET + 1; at++) {
    if (PAUSE_MS > 0) await setTimeout(PAUSE_MS)
    const { headers, message } = await call(url, session, messages, number % 2 === 1)
    sent()
    const due = [`${Math.min(at, BUDGET)}/${BUDGET}`, at > BUDGET ? 'max_iterations' : undefined]
    const got = [headers['x-governor-iteration'], headers['x-governor-terminal-reason']]
    if (got.join() !== due.join()) throw new Error(`${session}, request ${at}: ${got} in place of ${due}`)
    messages.push(message)
    for (const { id } of message.tool_calls ?? [])
      messages.push({ role: 'tool', tool_call_id: id, content: `nothing about ${number}` })
  }
}

/** What the process takes, in MB: resident as the system says, the heap as `/metrics` does. */
async function sample({ child, url }) {
  const [, resident] = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))
  const text = await (await fetch(`${url}/metrics`)).text()
  const metric = (name) => Number(new RegExp(`^${name} (.+)$`, 'm').exec(text)?.[1])
  return {
    rss: (Number(resident) * 1024) / MB,
    heap: metric('nodejs_heap_size_used_bytes') / MB,
    sessions: metric('governor_sessions'),
  }
}

async function soak() {
  const provider = await startProvider()
  const governor = await startGovernor(provider.url)
  const samples = []
  let requests = 0
  let isOver = false
  const began = performance.now()
  const note = async () => {
    const seconds = (performance.now() - began) / 1_000
    samples.push({ seconds, requests, ...(await sample(governor)) })
  }
  const sampling = (async () => {
    while (!isOver) {
      await note()
      await setTimeout(SAMPLE_MS)
    }
    await note()
  })()
  let next = 0
  let isInterrupted = false
  // Ctrl-C ends it early, with figures of what was sent.
  process.once('SIGINT', () => {
    isInterrupted = true
  })
  const work = async () => {
    while (next < SESSIONS && !isInterrupted && performance.now() - began < RUN_MS)
      await converse(governor.url, next++, () => requests++)
  }
  await Promise.all(Array.from({ length: AGENTS }, work))
  isOver = true
  await sampling
  governor.child.kill('SIGTERM')
  await once(governor.child, 'exit')
  provider.close()
  agent.destroy()
  return samples
}

/** The largest values between two shares of all requests. */
function peak(samples, from, to) {
  const total = samples.at(-1).requests
  const part = samples.filter(({ requests }) => requests >= from * total && requests <= to * total)
  const most = (key) => Math.round(Math.max(...part.map((one) => one[key])))
  return `| ${from * 100} to ${to * 100} % | ${most('sessions')} | ${most('heap')} MB | ${most('rss')} MB |`
}

const samples = await soak()
const step = Math.ceil(samples.length / MAX_ROWS)
const kept = samples.filter((_, at) => at % step === 0 || at === samples.length - 1)
const rows = kept.map(({ seconds, requests, sessions, heap, rss }) =>
  [seconds.toFixed(1), requests, sessions, heap.toFixed(1), rss.toFixed(1)].join(),
)
writeFileSync(`${values.out}.csv`, `seconds,requests,sessions,heap_mb,rss_mb\n${rows.join('\n')}\n`)
writeFileSync(`${values.out}.svg`, drawSoak(kept))
const { seconds, requests } = samples.at(-1)
const text = [
  `${requests} requests of ${requests / (BUDGET + 1)} sessions in ${Math.round(seconds)} s, ${AGENTS} at a time`,
  `Node ${process.version}, ${cpus().length} × ${cpus()[0]?.model}`,
  '| requests | sessions kept | heap used, at most | resident, at most |',
  '|---|---|---|---|',
  ...[0, 0.2, 0.4, 0.6, 0.8].map((from) => peak(samples, from, Math.round(10 * (from + 0.2)) / 10)),
]
process.stdout.write(`${text.join('\n')}\n`)
