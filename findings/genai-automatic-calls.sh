#!/usr/bin/env bash
# The automatic function calling of @google/genai with a model that calls a tool in every answer.
#
# Seen with @google/genai 3.3.0, Node 20.20: whole, the SDK executes the calls of the 10th answer as well, sends their results to
# nobody, and returns that answer: no text, and calls that look as if they were still to be made. Streamed, it asks an 11th
# time, and does not execute the calls of that answer. Neither throws, and neither says that a limit was reached.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "@google/genai@3.3.0"
cat >run.mjs <<'JS'
import http from 'node:http'
import { GoogleGenAI } from '@google/genai'
import { verdict } from './server.mjs'

let asked = 0
const server = http.createServer((request, response) => {
  request.resume().on('end', () => {
    const parts = [{ functionCall: { name: 'search', args: { query: `q${++asked}` } } }]
    const chunk = JSON.stringify({ candidates: [{ content: { parts, role: 'model' }, finishReason: 'STOP', index: 0 }] })
    const isStream = request.url.includes('alt=sse')
    response.writeHead(200, { 'content-type': isStream ? 'text/event-stream' : 'application/json' })
    response.end(isStream ? `data: ${chunk}\n\n` : chunk)
  })
})
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
const ai = new GoogleGenAI({ apiKey: 'k', httpOptions: { baseUrl: `http://127.0.0.1:${server.address().port}` } })

async function run(streams) {
  asked = 0
  let executed = 0
  const tool = {
    tool: async () => ({ functionDeclarations: [{ name: 'search' }] }),
    callTool: async (calls) => {
      executed += calls.length
      return calls.map(({ name }) => ({ functionResponse: { name, response: { output: 'found' } } }))
    },
  }
  const request = { model: 'm', contents: 'Which city?', config: { tools: [tool] } }
  let last
  if (!streams) last = await ai.models.generateContent(request)
  else for await (const chunk of await ai.models.generateContentStream(request)) last = chunk
  return { asked, executed, text: last.text ?? null, calls: last.functionCalls?.length ?? 0 }
}

const seen = { whole: await run(false), streamed: await run(true) }
server.close()
server.closeAllConnections()
verdict(seen, {
  whole: { asked: 10, executed: 10, text: null, calls: 1 },
  streamed: { asked: 11, executed: 10, text: null, calls: 1 },
})
JS
node run.mjs
