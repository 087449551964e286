#!/usr/bin/env bash
# gemini-cli in its headless form (`-p`) with a model that asks for the same shell command in every answer.
#
# Seen with @google/gemini-cli 0.61.0, Node 20.20: it executes the command four times, discards the fifth call and writes to the model that
# a loop may have been detected. At the sixth it ends: standard output is empty, standard error does not mention a loop, and the
# exit code is 0. With `--output-format stream-json` there is a warning about the loop, followed by a result whose status is `success`.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "@google/gemini-cli@0.61.0"
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { verdict } from './server.mjs'

const PROGRAM = 'node_modules/.bin/gemini'
let asked = 0
const server = http.createServer(async (request, response) => {
  let text = ''
  for await (const piece of request) text += piece
  const isTurn = text.includes('run_shell_command')
  if (isTurn) asked++
  const call = { name: 'run_shell_command', args: { command: 'echo the same words each time', description: 'step' } }
  const parts = [isTurn ? { functionCall: call } : { text: '{"model_choice":"pro","reasoning":"x"}' }]
  const chunk = JSON.stringify({
    candidates: [{ content: { parts, role: 'model' }, finishReason: 'STOP', index: 0 }],
    usageMetadata: { promptTokenCount: 10, candidatesTokenCount: 1, totalTokenCount: 11 },
  })
  const isStream = request.url.includes('alt=sse')
  response.writeHead(200, { 'content-type': isStream ? 'text/event-stream' : 'application/json' })
  response.end(isStream ? `data: ${chunk}\n\n` : chunk)
})
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))

/** Runs the program in a folder of its own, which is its home as well. */
async function run(format) {
  asked = 0
  const folder = `${process.cwd()}/home-${format}`
  mkdirSync(`${folder}/.gemini`, { recursive: true })
  const settings = { security: { auth: { selectedType: 'gemini-api-key' } }, general: { enableAutoUpdate: false } }
  writeFileSync(`${folder}/.gemini/settings.json`, JSON.stringify(settings))
  const args = ['-p', 'Run the steps you planned.', '--yolo', '-m', 'gemini-2.5-pro', '--output-format', format]
  const child = spawn(`${process.cwd()}/${PROGRAM}`, args, {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      PATH: process.env.PATH,
      HOME: folder,
      CI: '1',
      GEMINI_API_KEY: 'k',
      GOOGLE_GEMINI_BASE_URL: `http://127.0.0.1:${server.address().port}`,
      GEMINI_CLI_TRUST_WORKSPACE: 'true',
      GEMINI_CLI_NO_RELAUNCH: 'true',
      GEMINI_TELEMETRY_ENABLED: 'false',
    },
  })
  let [stdout, stderr] = ['', '']
  child.stdout.on('data', (data) => (stdout += data))
  child.stderr.on('data', (data) => (stderr += data))
  const code = await new Promise((resolve) => child.once('close', resolve))
  return { asked, code, stdout, saysLoop: /loop/i.test(stderr) }
}

const text = await run('text')
const json = await run('stream-json')
server.close()
server.closeAllConnections()
const events = json.stdout.split('\n').filter((line) => line.startsWith('{')).map((line) => JSON.parse(line))
const executed = events.filter(({ type }) => type === 'tool_result').length
const warning = events.find(({ type }) => type === 'error')?.message ?? null
const status = events.find(({ type }) => type === 'result')?.status ?? null
verdict(
  { text: { ...text, stdout: text.stdout.trim() }, json: { code: json.code, executed, warning, status } },
  {
    text: { asked: 6, code: 0, stdout: '', saysLoop: false },
    json: { code: 0, executed: 4, warning: 'Loop detected, stopping execution', status: 'success' },
  },
)
JS
node run.mjs
