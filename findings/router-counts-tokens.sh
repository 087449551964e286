#!/usr/bin/env bash
# A router that has one model to choose from counts the tokens of the whole history before each request, and serves nobody meanwhile.
#
# Seen with @musistudio/claude-code-router 2.0.0 (the newest one for Node 20), Node 20.20. Its configuration names one provider, one model
# and `Router.default`, so the count can't change where a request goes. For a history of 1 MB (200 calls of a tool):
#   the request itself     190 to 410 ms, nearly all of it tiktoken as WebAssembly
#   GET /health meanwhile  165 to 340 ms
#   JSON.parse and JSON.stringify of that body in the same process: 2 to 5 ms
# Each step of an agent sends its history again and is counted again as a whole. With a few agents in long conversations the router's process
# is busy counting: 4 such requests a second are all that it takes.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error --ignore-scripts @musistudio/claude-code-router@2.0.0
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { freePort, serve, verdict } from './server.mjs'

const { url } = await serve(() => ({ text: 'All 14 tests pass.' }))
const PORT = await freePort()
mkdirSync('home/.claude-code-router', { recursive: true })
const provider = { name: 'o', api_base_url: `${url}/chat/completions`, api_key: 'k', models: ['m'] }
const config = { LOG: false, PORT, Providers: [provider], Router: { default: 'o,m' } }
writeFileSync('home/.claude-code-router/config.json', JSON.stringify(config))
const main = 'node_modules/@musistudio/claude-code-router/dist/cli.js'
const router = spawn(process.execPath, [main, 'start'], { env: { PATH: process.env.PATH, HOME: `${process.cwd()}/home` } })
const origin = `http://127.0.0.1:${PORT}`
const health = () => fetch(`${origin}/health`).then((reply) => reply.text())
for (let at = 0; at < 200; at++) {
  if (await health().then(() => true, () => false)) break
  await sleep(100)
}

const result = 'The refund keeps its currency, and all tests of src/orders/refund.test.ts pass. '.repeat(60)
const messages = [{ role: 'user', content: 'Go.' }]
for (let at = 0; at < 200; at++) {
  messages.push({ role: 'assistant', content: [{ type: 'tool_use', id: `t${at}`, name: 'read', input: { path: `f${at}` } }] })
  messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: `t${at}`, content: `${at} ${result}` }] })
}
const tools = [{ name: 'read', description: 'Reads a file.', input_schema: { type: 'object' } }]
const body = JSON.stringify({ model: 'm', max_tokens: 50, tools, messages })
const timeOf = async (work) => {
  const began = performance.now()
  await work()
  return performance.now() - began
}
const headers = { 'content-type': 'application/json', 'anthropic-version': '2023-06-01' }
const statuses = new Set()
let [parsed, waited] = [Infinity, Infinity]
for (let round = 0; round < 5; round++) {
  parsed = Math.min(parsed, await timeOf(() => JSON.stringify(JSON.parse(body))))
  const asked = fetch(`${origin}/v1/messages`, { method: 'POST', headers, body })
  await sleep(20)
  waited = Math.min(waited, await timeOf(health))
  const reply = await asked
  statuses.add(reply.status)
  await reply.text()
}
router.kill('SIGKILL')
process.stderr.write(`another request waits ${waited.toFixed(0)} ms, JSON takes ${parsed.toFixed(0)} ms\n`)
const isMany = waited > 5 * parsed
verdict({ statuses: [...statuses], 'waits for more than 5 times as long as JSON takes': isMany }, {
  statuses: [200],
  'waits for more than 5 times as long as JSON takes': true,
})
process.exit()
JS
node run.mjs
