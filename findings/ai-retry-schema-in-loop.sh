#!/usr/bin/env bash
# ai-retry around the model of an agent with a tool and an output schema: it reads three pages, and then answers as the schema wants it.
#
# Seen with ai-retry 2.4.0, ai 7.0.173, @ai-sdk/openai-compatible 3.0.92, Node 20.20: `schemaInvalid().retry` compares every answer with the schema, also
# one that calls a tool. If the model says a word beside its call the answer is thrown away and asked for again, until no attempt is left; then
# the call is executed. With `maxAttempts: 5` the run of 4 requests takes 16, and `totalUsage` has the tokens of 4. A model that is silent beside
# its calls costs nothing more. Streamed it compares nothing: an answer unlike the schema is returned after one attempt.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error ai-retry@2.4.0 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 zod@4.6.7
cat >run.mjs <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, isStepCount, Output, streamText, tool } from 'ai'
import { createRetryableModel, schemaInvalid } from 'ai-retry/language-model'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const output = Output.object({ schema: z.object({ city: z.string() }) })

/** Runs the agent, whose model reads three pages, says something beside each call or nothing, and answers `last`. */
async function run(maxAttempts, ask, said, last = '{"city":"Oslo"}') {
  const { url, bodies } = await serve(({ messages }) => {
    const page = messages.filter(({ role }) => role === 'tool').length + 1
    return page > 3 ? { text: last } : { text: said, calls: [{ name: 'read', arguments: { page } }] }
  })
  const local = createOpenAICompatible({
    name: 'local',
    apiKey: 'k',
    baseURL: url,
    supportsStructuredOutputs: true,
    includeUsage: true,
  })('m')
  const model = maxAttempts
    ? createRetryableModel({ model: local, retries: [schemaInvalid().retry({ maxAttempts })] })
    : local
  let executed = 0
  const read = tool({
    description: 'Reads',
    inputSchema: z.object({ page: z.number() }),
    execute: ({ page }) => {
      executed++
      return `Page ${page}`
    },
  })
  const options = { model, prompt: 'Which city?', tools: { read }, output, stopWhen: isStepCount(6), maxRetries: 0 }
  const result = await ask(options)
  const { totalTokens } = (await result.totalUsage) ?? (await result.usage)
  return {
    requests: bodies.length,
    executed,
    tokens: bodies.length * 1007,
    tokensSaid: totalTokens,
    answer: await result.text,
  }
}

const said = 'I read the next page.'
verdict(
  {
    'without ai-retry': await run(0, generateText, said),
    'silent beside its calls': await run(5, generateText),
    'maxAttempts 2': await run(2, generateText, said),
    'maxAttempts 5': await run(5, generateText, said),
    'maxAttempts 5, streamed': await run(5, streamText, said),
    'streamed, an answer unlike the schema': await run(5, streamText, undefined, '{"town":"Oslo"}'),
  },
  {
    'without ai-retry': { requests: 4, executed: 3, tokens: 4028, tokensSaid: 4028, answer: '{"city":"Oslo"}' },
    'silent beside its calls': { requests: 4, executed: 3, tokens: 4028, tokensSaid: 4028, answer: '{"city":"Oslo"}' },
    'maxAttempts 2': { requests: 7, executed: 3, tokens: 7049, tokensSaid: 4028, answer: '{"city":"Oslo"}' },
    'maxAttempts 5': { requests: 16, executed: 3, tokens: 16112, tokensSaid: 4028, answer: '{"city":"Oslo"}' },
    'maxAttempts 5, streamed': { requests: 4, executed: 3, tokens: 4028, tokensSaid: 4028, answer: '{"city":"Oslo"}' },
    'streamed, an answer unlike the schema': {
      requests: 4,
      executed: 3,
      tokens: 4028,
      tokensSaid: 4028,
      answer: '{"town":"Oslo"}',
    },
  },
)
process.exit()
JS
node run.mjs
