#!/usr/bin/env bash
# LangChain's ChatOpenAI with `streaming: true`, against a model server on this machine.
#
# Seen with @langchain/openai 1.6.0 and @langchain/core 1.4.0, Node 20.20: after the model has answered, `invoke` counts the
# tokens of prompt and answer itself, for which it downloads a table from another host (tiktoken.pages.dev). The table
# is GPT-2's whatever the model: for a prompt of indented code in gpt-4o the estimate is three times the number of that model's
# tokens. The server has stated the usage in its stream, as LangChain asked it to (`stream_options.include_usage`);
# LangChain keeps that figure on the message, and gives callbacks its own, in `llmOutput.estimatedTokenUsage`.
# `streamUsage: true` changes nothing. With `stream`, or without `streaming: true`, no other host is asked.
# Here the host's answer comes from the package js-tiktoken. In a closed network each count tries again with growing
# waits: an `invoke` that the model server answered in milliseconds took more than a minute.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @langchain/openai@1.6.0 @langchain/core@1.4.0 js-tiktoken@1.0.21
cat >run.mjs <<'JS'
import { ChatOpenAI } from '@langchain/openai'
import { getEncoding } from 'js-tiktoken'
import { serve, verdict } from './server.mjs'

const prompt = `Which city?\n${'                if (tower.isTall) {\n'.repeat(40)}`
const { url, bodies } = await serve(() => ({ text: 'It is Oslo.' }))
const local = globalThis.fetch
let strangers = []
globalThis.fetch = async (input, init) => {
  const target = new URL(input instanceof Request ? input.url : String(input))
  if (target.hostname === '127.0.0.1') return local(input, init)
  strangers.push(target.href)
  return Response.json((await import('js-tiktoken/ranks/gpt2')).default)
}

async function ask(options, streams) {
  strangers = []
  let estimate
  const handler = { handleLLMEnd: (output) => void (estimate = output.llmOutput?.estimatedTokenUsage?.promptTokens) }
  const settings = { model: 'gpt-4o', apiKey: 'k', configuration: { baseURL: url }, callbacks: [handler] }
  const model = new ChatOpenAI({ ...settings, ...options })
  let answer
  if (streams) for await (const part of await model.stream(prompt)) answer = answer?.concat(part) ?? part
  else answer = await model.invoke(prompt)
  const asksForUsage = bodies.at(-1).stream_options?.include_usage ?? false
  return { strangers, asksForUsage, stated: answer.usage_metadata.input_tokens, estimate: estimate ?? null }
}

const whole = await ask({}, false)
const stream = await ask({}, true)
const streaming = await ask({ streaming: true }, false)
// The table is kept for the process.
const again = await ask({ streaming: true, streamUsage: true }, false)
const tokensOfTheModel = getEncoding('o200k_base').encode(prompt).length
verdict(
  { whole, stream, streaming, again, tokensOfTheModel },
  {
    whole: { strangers: [], asksForUsage: false, stated: 1000, estimate: null },
    stream: { strangers: [], asksForUsage: true, stated: 1000, estimate: null },
    streaming: {
      strangers: ['https://tiktoken.pages.dev/js/gpt2.json'],
      asksForUsage: true,
      stated: 1000,
      estimate: 1011,
    },
    again: { strangers: [], asksForUsage: true, stated: 1000, estimate: 1011 },
    tokensOfTheModel: 323,
  },
)
JS
node run.mjs
