#!/usr/bin/env bash
# Three libraries that read the usage of a stream, where it is not where OpenAI states it, and a model that reads 20 pages, 1,500 tokens a step.
#
# Seen with @strands-agents/sdk 1.19.0, @xsai/stream-text 0.4.4, multi-llm-ts 5.1.1, ai 7.0.173, Node 20.20. OpenAI states it in a chunk of its own
# without choices. DeepSeek and Mistral state it in the chunk that has the finish reason: a run of Strands took 0 tokens then, and its limits
# of tokens hold nothing: with `limits: { totalTokens: 3000 }` it ends after 21 steps instead of 2, as an `endTurn`. Where every chunk states
# how much it is so far (vLLM with `continuous_usage_stats`, Perplexity) xsAI and multi-llm-ts add these up: an answer of 1,500 tokens in
# 40 pieces took 63,000. ai counts 1,500 in all three.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error --legacy-peer-deps @strands-agents/sdk@1.19.0 @modelcontextprotocol/sdk@1.32.2 \
  @opentelemetry/api@1.9.1 openai@6.49.0 @xsai/stream-text@0.4.4 multi-llm-ts@5.1.1 \
  ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 zod@4.6.7
cat >run.mjs <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Agent, tool } from '@strands-agents/sdk'
import { OpenAIModel } from '@strands-agents/sdk/models/openai'
import { streamText as xsaiStream } from '@xsai/stream-text'
import { streamText } from 'ai'
import { igniteEngine, logger, Message } from 'multi-llm-ts'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

logger.disable()
const places = ['a chunk of its own', 'the last choice', 'every chunk']
const usage = { prompt_tokens: 1000, completion_tokens: 500, total_tokens: 1500 }
const messages = [{ role: 'user', content: 'Which city?' }]

/** Runs an agent of Strands with a limit, whose model reads 20 pages and answers. */
async function strands(usageIn, limits) {
  const { url, bodies } = await serve((_, number) => ({
    ...(number > 20 ? { text: 'Oslo.' } : { calls: [{ name: 'read', arguments: { page: number } }] }),
    usage,
    usageIn,
  }))
  const read = tool({
    name: 'read',
    description: 'Reads a page',
    inputSchema: z.object({ page: z.number() }),
    callback: ({ page }) => `Page ${page}`,
  })
  const model = new OpenAIModel({ api: 'chat', modelId: 'm', apiKey: 'k', clientConfig: { baseURL: url } })
  const result = await new Agent({ model, tools: [read], printer: false }).invoke('Which city?', { limits })
  return `${bodies.length} requests, ${result.stopReason}, ${result.metrics.accumulatedUsage.totalTokens} tokens`
}

const libraries = {
  async xsai(baseURL) {
    const streamOptions = { includeUsage: true }
    const run = xsaiStream({ baseURL: `${baseURL}/`, apiKey: 'k', model: 'm', messages, streamOptions })
    for await (const _ of run.textStream);
    return (await run.totalUsage)?.total_tokens
  },
  async 'multi-llm-ts'(baseURL) {
    const engine = igniteEngine('openai', { apiKey: 'k', baseURL })
    const stream = engine.generate(engine.buildModel('m'), [new Message('user', 'Which city?')], { usage: true })
    let total
    for await (const { type, usage } of stream)
      if (type === 'usage') total = usage.prompt_tokens + usage.completion_tokens
    return total
  },
  async ai(baseURL) {
    const model = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL, includeUsage: true })('m')
    return (await streamText({ model, messages }).usage).totalTokens
  },
}

const seen = {}
for (const place of places) {
  seen[place] = {}
  for (const [name, ask] of Object.entries(libraries)) {
    const pieces = Array.from({ length: 40 }, () => ({ content: 'word ' }))
    const { url } = await serve(() => ({ deltas: pieces, usage, usageIn: place }))
    seen[place][name] = await ask(url)
  }
}
for (const place of places.slice(0, 2)) {
  seen[place]['Strands, 3,000 tokens'] = await strands(place, { totalTokens: 3000 })
  seen[place]['Strands, 1,000 tokens of output'] = await strands(place, { outputTokens: 1000 })
}
verdict(seen, {
  'a chunk of its own': {
    xsai: 1500,
    'multi-llm-ts': 1500,
    ai: 1500,
    'Strands, 3,000 tokens': '2 requests, limitTotalTokens, 3000 tokens',
    'Strands, 1,000 tokens of output': '2 requests, limitOutputTokens, 3000 tokens',
  },
  'the last choice': {
    xsai: 1500,
    'multi-llm-ts': 1500,
    ai: 1500,
    'Strands, 3,000 tokens': '21 requests, endTurn, 0 tokens',
    'Strands, 1,000 tokens of output': '21 requests, endTurn, 0 tokens',
  },
  'every chunk': { xsai: 63000, 'multi-llm-ts': 63000, ai: 1500 },
})
process.exit()
JS
node run.mjs
