#!/usr/bin/env bash
# Ax and Strands with a provider that is down for as long as they ask.
#
# Seen with @ax-llm/ax 24.0.21, @strands-agents/sdk 1.19.0, openai 6.49.0, Node 20.20, requests for one answer, all of them equal:
#              a 503                  a 429
#   Ax         16                     4
#   Strands    3                      9 and more (18 in about a minute, when it is let)
# Each has two layers that retry, and both layers take one of the two errors for theirs: Ax a provider that fails, Strands one that asks for less.
# With the waits that the provider itself asks for (1 second) a question to Ax fails after 19 seconds.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @ax-llm/ax@24.0.21 @strands-agents/sdk@1.19.0 openai@6.49.0 zod@4.6.7
cat >run.mjs <<'JS'
import { setTimeout as sleep } from 'node:timers/promises'
import { ai, ax } from '@ax-llm/ax'
import { Agent } from '@strands-agents/sdk'
import { OpenAIModel } from '@strands-agents/sdk/models/openai'
import { serve, verdict } from './server.mjs'

const question = 'Which city?'
const clients = {
  ax: (apiURL) => ax('question:string -> answer:string').forward(ai({ name: 'openai', apiKey: 'k', apiURL }), { question }),
  strands: (baseURL) => {
    const model = new OpenAIModel({ api: 'chat', modelId: 'm', apiKey: 'k', clientConfig: { baseURL } })
    return new Agent({ model, printer: false }).invoke(question)
  },
}

/** Returns how often a client asks until it fails, or has asked a number of times. */
async function requests(client, status, most) {
  const { url, bodies } = await serve(() => ({ status, headers: { 'retry-after': '1' } }))
  let failed = false
  clients[client](url).catch(() => {
    failed = true
  })
  while (!failed && bodies.length < most) await sleep(100)
  const different = new Set(bodies.map((body) => JSON.stringify(body))).size
  return `${bodies.length}${failed ? ', then an error' : ' and more'}; different ones: ${different}`
}

const ends = (count) => `${count}, then an error; different ones: 1`
const [axDown, axBusy, strandsDown, strandsBusy] = await Promise.all([
  requests('ax', 503, 100),
  requests('ax', 429, 100),
  requests('strands', 503, 100),
  requests('strands', 429, 9),
])
verdict(
  { ax: { 503: axDown, 429: axBusy }, strands: { 503: strandsDown, 429: strandsBusy } },
  {
    ax: { 503: ends(16), 429: ends(4) },
    strands: { 503: ends(3), 429: '9 and more; different ones: 1' },
  },
)
process.exit()
JS
node run.mjs
