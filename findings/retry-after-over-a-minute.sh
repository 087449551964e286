#!/usr/bin/env bash
# Clients whose provider answers 429 and says in `retry-after` how long to wait, and whose user aborts while they wait.
#
# Seen with openai 6.49.0 and 7.59.0, @anthropic-ai/sdk 1.14.0, ai 7.0.173, @langchain/openai 1.6.0, @ax-llm/ax 24.0.21, Node 20.20. Told to wait 6
# seconds, each waits 6 seconds. Told to wait 75:
#   openai 6, Anthropic   wait
#   openai 7, ai          ask twice more within seconds, and fail
#   ax                    asks three times more within seconds, and fails
#   LangChain             fails at once
# So behind a provider that wants rest for longer than a minute, openai 7, ai and ax ask sooner, and all but two are done sooner, than behind one
# that wants it for some seconds. An abort ends the wait of 6 seconds at once in openai 7, Anthropic, `ai` and LangChain's `stream`; openai 6,
# LangChain's `invoke` and ax let their caller wait until it is over.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error openai@7.59.0 openai6@npm:openai@6.49.0 @anthropic-ai/sdk@1.14.0 \
  ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 @langchain/openai@1.6.0 @langchain/core@1.4.0 @ax-llm/ax@24.0.21
cat >run.mjs <<'JS'
import { setTimeout as sleep } from 'node:timers/promises'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import Anthropic from '@anthropic-ai/sdk'
import { ai as axAI, ax } from '@ax-llm/ax'
import { ChatOpenAI } from '@langchain/openai'
import { generateText } from 'ai'
import OpenAI7 from 'openai'
import OpenAI6 from 'openai6'
import { serve, verdict } from './server.mjs'

const question = 'Which city?'
const messages = [{ role: 'user', content: question }]
const openai = (OpenAI) => (baseURL, signal) =>
  new OpenAI({ apiKey: 'k', baseURL }).chat.completions.create({ model: 'm', messages }, { signal })
const langchain = (baseURL) => new ChatOpenAI({ model: 'm', apiKey: 'k', configuration: { baseURL } })
const clients = {
  'openai 6': openai(OpenAI6),
  'openai 7': openai(OpenAI7),
  anthropic: (baseURL, signal) =>
    new Anthropic({ apiKey: 'k', baseURL }).messages.create({ model: 'm', max_tokens: 9, messages }, { signal }),
  ai: (baseURL, abortSignal) => {
    const model = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL })('m')
    return generateText({ model, prompt: question, abortSignal })
  },
  'langchain, invoke': (baseURL, signal) => langchain(baseURL).invoke(question, { signal }),
  'langchain, stream': async (baseURL, signal) => {
    for await (const _ of await langchain(baseURL).stream(question, { signal }));
  },
  ax: (apiURL, abortSignal) => {
    const llm = axAI({ name: 'openai', apiKey: 'k', apiURL })
    return ax('question:string -> answer:string').forward(llm, { question }, { abortSignal })
  },
}

/** Asks a client for an answer; says what it has done after a number of milliseconds. */
async function watch(client, wait, milliseconds, signal) {
  const { url, bodies } = await serve(() => ({ status: 429, headers: { 'retry-after': wait } }))
  const failed = clients[client](url, signal).catch(() => 'failed')
  const end = await Promise.race([failed, sleep(milliseconds, 'waits')])
  return { requests: bodies.length, end }
}

const seen = {}
await Promise.all(
  Object.keys(clients).map(async (client) => {
    const aborted = await watch(client, '6', 3500, AbortSignal.timeout(1500))
    const { requests, end } = await watch(client, '75', 15_000)
    seen[client] = { 'told 75 s': `${requests} requests, ${end}`, 'told 6 s, aborted': aborted.end }
  }),
)
verdict(Object.fromEntries(Object.keys(clients).map((client) => [client, seen[client]])), {
  'openai 6': { 'told 75 s': '1 requests, waits', 'told 6 s, aborted': 'waits' },
  'openai 7': { 'told 75 s': '3 requests, failed', 'told 6 s, aborted': 'failed' },
  anthropic: { 'told 75 s': '1 requests, waits', 'told 6 s, aborted': 'failed' },
  ai: { 'told 75 s': '3 requests, failed', 'told 6 s, aborted': 'failed' },
  'langchain, invoke': { 'told 75 s': '1 requests, failed', 'told 6 s, aborted': 'waits' },
  'langchain, stream': { 'told 75 s': '1 requests, failed', 'told 6 s, aborted': 'failed' },
  ax: { 'told 75 s': '4 requests, failed', 'told 6 s, aborted': 'waits' },
})
process.exit()
JS
node run.mjs
