#!/usr/bin/env bash
# Strands over Chat Completions, with a model that asks for several calls in one answer and says a word before them.
#
# Seen with @strands-agents/sdk 1.19.0 and openai 6.49.0, Node 20.20: of the calls of one answer the last one is executed. The others, and
# what was said before them, are in no message: the next request shows the model an answer of its own with one call and no text, and nothing
# is logged. A model that wants eight pages, and reads in parallel what it has not got, asks for 36 calls in eight answers; the same
# stream through openai's own `runTools` is read in one. Each call has chunks of its own here, one after the other, as OpenAI streams them.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @strands-agents/sdk@1.19.0 openai@6.49.0 zod@4.6.7
cat >run.mjs <<'JS'
import { Agent, tool } from '@strands-agents/sdk'
import { OpenAIModel } from '@strands-agents/sdk/models/openai'
import OpenAI from 'openai'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const pages = [1, 2, 3, 4, 5, 6, 7, 8]
const callDeltas = (page, index, number) => [
  [{ index, id: `call_${number}_${page}`, type: 'function', function: { name: 'read', arguments: '' } }],
  [{ index, function: { arguments: JSON.stringify({ page }) } }],
]
/** The model: reads every page whose text is not in the request, and then answers. */
function model({ messages }, number) {
  const got = JSON.stringify(messages)
  const missing = pages.filter((page) => !got.includes(`text of page ${page}`))
  if (missing.length === 0) return { text: 'Oslo.' }
  const calls = missing.flatMap((page, index) => callDeltas(page, index, number))
  const said = { role: 'assistant', content: 'I read what I need.' }
  return { deltas: [said, ...calls.map((tool_calls) => ({ tool_calls }))], finish: 'tool_calls' }
}

async function strands(url, read) {
  const parts = { name: 'read', description: 'Read', inputSchema: z.object({ page: z.number() }), callback: read }
  const chat = new OpenAIModel({ api: 'chat', modelId: 'm', apiKey: 'k', clientConfig: { baseURL: url } })
  await new Agent({ model: chat, tools: [tool(parts)], printer: false }).invoke('Which city?')
}

async function runTools(url, read) {
  const parameters = { type: 'object', properties: { page: { type: 'number' } } }
  const tools = [{ type: 'function', function: { name: 'read', parse: JSON.parse, parameters, function: read } }]
  const messages = [{ role: 'user', content: 'Which city?' }]
  const client = new OpenAI({ apiKey: 'k', baseURL: url })
  await client.chat.completions.runTools({ model: 'm', stream: true, messages, tools }).done()
}

const seen = {}
for (const [name, run] of Object.entries({ strands, runTools })) {
  const executed = []
  const { url, bodies } = await serve(model)
  await run(url, ({ page }) => {
    executed.push(page)
    return `The text of page ${page}.`
  })
  const kept = bodies[1].messages[1]
  seen[name] = {
    requests: bodies.length,
    executed: executed.join(' '),
    firstAnswerAsSentBack: { text: kept.content, calls: kept.tool_calls.length },
  }
}
verdict(seen, {
  strands: { requests: 9, executed: '8 7 6 5 4 3 2 1', firstAnswerAsSentBack: { text: '', calls: 1 } },
  runTools: {
    requests: 2,
    executed: '1 2 3 4 5 6 7 8',
    firstAnswerAsSentBack: { text: 'I read what I need.', calls: 8 },
  },
})
JS
node run.mjs
