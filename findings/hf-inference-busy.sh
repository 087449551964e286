#!/usr/bin/env bash
# The client of Hugging Face and a provider that is busy (503) for two seconds, says so, and then answers.
#
# Seen with @huggingface/inference 4.13.30, openai 7.59.0, Node 20.20: the answer comes, after 3,500 to 7,000 requests. At a 503 the client asks
# again at once, with no pause, and does not look at `retry-after`, which says 2 seconds; openai waits as it is told, and asks twice.
# Each request has the whole prompt: with one of 20,000 characters a single question sends 70 MB and more in those two seconds, and nothing
# tells the caller. A 429 with the same `retry-after` is an error at once: that one is never asked again.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @huggingface/inference@4.13.30 openai@7.59.0
cat >run.mjs <<'JS'
import { InferenceClient } from '@huggingface/inference'
import OpenAI from 'openai'
import { serve, verdict } from './server.mjs'

const request = { model: 'm', messages: [{ role: 'user', content: 'word '.repeat(4000) }] }
const clients = {
  huggingface: (url) => new InferenceClient('k', { endpointUrl: url }).chatCompletion(request),
  openai: (baseURL) => new OpenAI({ apiKey: 'k', baseURL }).chat.completions.create(request),
}

/** Returns how often a client asks until it has the answer of a provider that is busy for two seconds after the first request. */
async function ask(name, status) {
  let first
  const { url, bodies } = await serve(() => {
    first ??= Date.now()
    return Date.now() - first < 2000 ? { status, headers: { 'retry-after': '2' } } : { text: 'Oslo.' }
  })
  const end = await clients[name](url).then(
    ({ choices }) => choices[0].message.content,
    () => 'an error',
  )
  process.stdout.write(`${name}, ${status}: ${bodies.length} requests\n`)
  return `${bodies.length > 500 ? 'more than 500' : bodies.length}, then: ${end}`
}

const seen = {}
for (const name of Object.keys(clients)) seen[name] = { 503: await ask(name, 503), 429: await ask(name, 429) }
verdict(seen, {
  huggingface: { 503: 'more than 500, then: Oslo.', 429: '1, then: an error' },
  openai: { 503: '2, then: Oslo.', 429: '2, then: Oslo.' },
})
process.exit()
JS
node run.mjs
