#!/usr/bin/env bash
# OpenRouter's agent with a budget (`maxCost`) or a limit of steps in `stopWhen`, and a model that reads pages for as long as it may.
#
# Seen with @openrouter/agent 0.8.0, @openrouter/sdk 0.13.67, zod 4.6.7, Node 20.20, at 2 cents that the provider states for each request:
#   maxCost(0.05)              10 cents; without the final answer 8
#   maxTokensUsed(3000)        5 requests of 1,007 tokens each
#   stepCountIs(1)             3 requests
#   finishReasonIs('length')   never stops: the reason of a step is always undefined, also where the provider says `incomplete`
# A step is counted when its calls have been executed, so that the answer that is there when a condition is looked at, the one
# that goes over the budget, is not in the sum; its calls are executed too, and the final answer, which is on by default, is one request
# more. The caller sees a completed response whose `usage` is the last request's: 2 cents.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @openrouter/agent@0.8.0 @openrouter/sdk@0.13.67 zod@4.6.7
cat >run.mjs <<'JS'
import { once } from 'node:events'
import http from 'node:http'
import { finishReasonIs, maxCost, maxTokensUsed, OpenRouter, stepCountIs, tool } from '@openrouter/agent'
import { z } from 'zod'
import { verdict } from './server.mjs'

/** A provider of streamed Responses: it calls while it may, and its second answer is cut. */
async function serveResponses() {
  const bodies = []
  const server = http.createServer(async (request, reply) => {
    let text = ''
    for await (const piece of request) text += piece
    const body = JSON.parse(text)
    const number = bodies.push(body)
    const cut = number === 2
    const content = [{ type: 'output_text', text: 'Oslo.', annotations: [], logprobs: [] }]
    const said = { id: `msg_${number}`, type: 'message', role: 'assistant', status: 'completed', content }
    const call = { call_id: `call_${number}`, name: 'read', arguments: JSON.stringify({ page: number }) }
    const called = { id: `fc_${number}`, type: 'function_call', status: 'completed', ...call }
    const type = cut ? 'response.incomplete' : 'response.completed'
    const response = {
      id: `resp_${number}`,
      object: 'response',
      created_at: 1_760_000_000,
      completed_at: 1_760_000_001,
      model: body.model,
      status: cut ? 'incomplete' : 'completed',
      error: null,
      incomplete_details: cut ? { reason: 'max_output_tokens' } : null,
      output: [body.tool_choice === 'none' ? said : called],
      parallel_tool_calls: true,
      tool_choice: 'auto',
      tools: [],
      temperature: null,
      top_p: null,
      presence_penalty: null,
      frequency_penalty: null,
      metadata: null,
      instructions: null,
      usage: {
        input_tokens: 1000,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens: 7,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: 1007,
        cost: 0.02,
      },
    }
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    reply.end(`data: ${JSON.stringify({ type, sequence_number: 1, response })}\n\ndata: [DONE]\n\n`)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return { serverURL: `http://127.0.0.1:${server.address().port}/v1`, bodies }
}

async function run(stopWhen, more) {
  const { serverURL, bodies } = await serveResponses()
  let executed = 0
  const read = tool({
    name: 'read',
    description: 'Reads a page',
    inputSchema: z.object({ page: z.number() }),
    execute: ({ page }) => ({ text: `Page ${page}`, number: ++executed }),
  })
  const result = new OpenRouter({ apiKey: 'k', serverURL }).callModel({
    model: 'm',
    input: 'Which city?',
    tools: [read],
    stopWhen,
    ...more,
  })
  const { status, usage } = await result.getResponse()
  return {
    requests: bodies.length,
    'cents that they cost': bodies.length * 2,
    'calls executed': executed,
    'what the caller sees': `${status}: "${await result.getText()}", ${usage.cost * 100} cents`,
  }
}

const limits = {
  'maxCost(0.05)': [maxCost(0.05)],
  'maxCost(0.05), no final answer': [maxCost(0.05), { allowFinalResponse: false }],
  'maxTokensUsed(3000)': [maxTokensUsed(3000)],
  'stepCountIs(1)': [stepCountIs(1)],
  "finishReasonIs('length') or 8 steps": [[finishReasonIs('length'), stepCountIs(8)]],
}
const seen = {}
for (const [name, limit] of Object.entries(limits)) seen[name] = await run(...limit)
const ends = (requests, executed, text = 'Oslo.') => ({
  requests,
  'cents that they cost': requests * 2,
  'calls executed': executed,
  'what the caller sees': `completed: "${text}", 2 cents`,
})
verdict(seen, {
  'maxCost(0.05)': ends(5, 4),
  'maxCost(0.05), no final answer': ends(4, 3, ''),
  'maxTokensUsed(3000)': ends(5, 4),
  'stepCountIs(1)': ends(3, 2),
  "finishReasonIs('length') or 8 steps": ends(10, 9),
})
process.exit()
JS
node run.mjs
