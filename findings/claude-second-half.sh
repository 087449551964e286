#!/usr/bin/env bash
# Claude Code's `claude -p` with an answer that the output limit cuts.
#
# Seen with @anthropic-ai/claude-code 2.1.332: it sends the half back and asks to resume directly, without a recap. The model writes the
# other half, and that half alone is printed, with exit code 0; with `--output-format json` it is the `result` of a `success`. The first half
# is in neither; the JSON has the usage of both, two turns, and the reason `end_turn`. A model that is cut each time is asked four times;
# then an error is printed, with exit code 1, and none of the four texts.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @anthropic-ai/claude-code@2.1.332
cat >run.mjs <<'JS'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync } from 'node:fs'
import http from 'node:http'
import { verdict } from './server.mjs'

/** Starts a server that streams as Anthropic's Messages do; `answer(body)` returns `[text, stop_reason]`. */
async function serveStreams(answer) {
  const bodies = []
  const server = http.createServer(async (request, reply) => {
    let body = ''
    for await (const piece of request) body += piece
    bodies.push(JSON.parse(body))
    const [text, stop_reason] = answer(bodies.at(-1))
    const usage = { input_tokens: 1000, output_tokens: 7 }
    const message = { id: `msg_${bodies.length}`, type: 'message', role: 'assistant', model: bodies.at(-1).model }
    const events = [
      { type: 'message_start', message: { ...message, content: [], stop_reason: null, stop_sequence: null, usage } },
      { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } },
      { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text } },
      { type: 'content_block_stop', index: 0 },
      { type: 'message_delta', delta: { stop_reason, stop_sequence: null }, usage: { output_tokens: 7 } },
      { type: 'message_stop' },
    ]
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    reply.end(events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join(''))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  server.unref()
  return { url: `http://127.0.0.1:${server.address().port}`, bodies }
}

async function claude(answer, ...args) {
  const { url, bodies } = await serveStreams(answer)
  const folder = `${process.cwd()}/home`
  mkdirSync(folder, { recursive: true })
  const child = spawn(`${process.cwd()}/node_modules/.bin/claude`, ['-p', ...args, 'Which city?'], {
    cwd: folder,
    stdio: ['ignore', 'pipe', 'ignore'],
    env: {
      PATH: process.env.PATH,
      HOME: folder,
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_API_KEY: 'k',
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      DISABLE_AUTOUPDATER: '1',
    },
  })
  let printed = ''
  child.stdout.on('data', (data) => {
    printed += data
  })
  const [code] = await once(child, 'close')
  return { code, requests: bodies.length, printed }
}

const halves = (body) =>
  JSON.stringify(body.messages).includes('It is not Bergen, and')
    ? ['the tallest one is in Oslo.', 'end_turn']
    : ['It is not Bergen, and', 'max_tokens']

const text = await claude(halves)
const json = await claude(halves, '--output-format', 'json')
const { subtype, is_error, result } = JSON.parse(json.printed)
const always = await claude(() => ['It is not Bergen, and', 'max_tokens'])
verdict(
  {
    text,
    json: { code: json.code, requests: json.requests, subtype, is_error, result },
    always: { ...always, printed: always.printed.replace(/(?<=maximum\.).*/s, '') },
  },
  {
    text: { code: 0, requests: 2, printed: 'the tallest one is in Oslo.\n' },
    json: { code: 0, requests: 2, subtype: 'success', is_error: false, result: 'the tallest one is in Oslo.' },
    always: {
      code: 1,
      requests: 4,
      printed: "API Error: Claude's response exceeded the 128000 output token maximum.",
    },
  },
)
JS
node run.mjs
