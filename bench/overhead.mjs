// Added latency: the same guarded request straight to a provider and through Governor, one at a time over kept-alive
// connections, interleaved, each in a process of its own. Prints percentiles in milliseconds and their differences.
// Usage: node bench/overhead.mjs [requests per subject, default 300]
import { fork } from 'node:child_process'
import { once } from 'node:events'
import http from 'node:http'
import { fileURLToPath } from 'node:url'

const self = fileURLToPath(import.meta.url)
const [role, argument] = process.argv.slice(2)
const REPLY = JSON.stringify({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1_760_000_000,
  model: 'gpt-bench',
  choices: [{ index: 0, message: { role: 'assistant', content: 'ok' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
})

function listening(server) {
  server.listen(0, '127.0.0.1', () => process.send(server.address().port))
}

/** A conversation of about `bytes` bytes as an agent sends it: tool calls and their results. */
function conversation(bytes) {
  const messages = [
    { role: 'system', content: 'You are a coding agent.' },
    { role: 'user', content: 'Make the tests pass.' },
  ]
  const result = 'x'.repeat(Math.min(2_000, Math.max(100, bytes / 4)))
  for (let at = 0; JSON.stringify(messages).length < bytes - result.length; at++) {
    const call = {
      id: `call_${at}`,
      type: 'function',
      function: { name: 'read_file', arguments: `{"path":"src/${at}.ts"}` },
    }
    messages.push({ role: 'assistant', content: null, tool_calls: [call] })
    messages.push({ role: 'tool', tool_call_id: call.id, content: `line ${at}\n"${result}"` })
  }
  const tools = [
    { type: 'function', function: { name: 'read_file', parameters: { type: 'object', properties: {} } } },
  ]
  return { model: 'gpt-bench', messages, tools }
}

function call(agent, port, body, session) {
  return new Promise((resolve, reject) => {
    const began = performance.now()
    const headers = {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
      authorization: 'Bearer bench',
      'x-governor-session': session,
    }
    const options = { agent, port, host: '127.0.0.1', method: 'POST', path: '/v1/chat/completions', headers }
    const request = http.request(options, (response) => {
      response.resume()
      response.on('end', () => resolve(performance.now() - began))
    })
    request.on('error', reject)
    request.end(body)
  })
}

function percentile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}

if (role === 'provider') {
  listening(
    http.createServer({ keepAliveTimeout: 0 }, (request, response) => {
      request.resume()
      request.on('end', () => response.writeHead(200, { 'content-type': 'application/json' }).end(REPLY))
    }),
  )
} else if (role === 'governor') {
  const { buildGovernor } = await import('../dist/app.js')
  const { checkConfig } = await import('../dist/config/load.js')
  const { pino } = await import('pino')
  const config = checkConfig(
    { server: { port: 0 }, upstreams: { openai: { url: argument } }, budget: { max_iterations: 1_000_000 } },
    'bench',
  )
  const governor = buildGovernor(config, { log: pino({ level: 'silent' }) })
  process.send(Number(new URL(await governor.listen()).port))
} else {
  const count = Number(role ?? 300)
  const children = []
  const start = async (...args) => {
    const child = fork(self, args)
    children.push(child)
    const [port] = await once(child, 'message')
    return port
  }
  const provider = await start('provider')
  const governor = await start('governor', `http://127.0.0.1:${provider}`)
  const agents = {
    direct: new http.Agent({ keepAlive: true }),
    governor: new http.Agent({ keepAlive: true }),
  }
  process.stdout.write('body      subject    p50      p99      (ms; one request at a time)\n')
  for (const [name, bytes] of [
    ['1 KB', 1_024],
    ['256 KB', 262_144],
  ]) {
    const template = JSON.stringify(conversation(bytes))
    const times = { direct: [], governor: [] }
    for (let at = -20; at < count; at++) {
      const body = template.replace('Make the tests', `Make the ${at} tests`)
      for (const [subject, port] of [
        ['direct', provider],
        ['governor', governor],
      ]) {
        const time = await call(agents[subject], port, body, `s${at}`)
        if (at >= 0) times[subject].push(time)
      }
    }
    const rows = Object.entries(times).map(([subject, list]) => {
      const sorted = list.toSorted((a, b) => a - b)
      return [subject, percentile(sorted, 0.5), percentile(sorted, 0.99)]
    })
    rows.push(['added', rows[1][1] - rows[0][1], rows[1][2] - rows[0][2]])
    for (const [subject, p50, p99] of rows) {
      process.stdout.write(
        `${name.padEnd(9)} ${subject.padEnd(10)} ${p50.toFixed(3).padStart(7)}  ${p99.toFixed(3).padStart(7)}\n`,
      )
    }
  }
  for (const agent of Object.values(agents)) agent.destroy()
  for (const child of children) child.kill()
}
