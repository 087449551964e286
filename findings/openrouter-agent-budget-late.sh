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
import { finishReasonIs, maxCost, maxTokensUsed, OpenRouter, stepCountIs, tool } from '@openrouter/agent'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

/** A model that calls while it may, and whose second answer is cut; each request costs 2 cents. */
const answer = ({ tool_choice: choice }, number) => ({
  ...(choice === 'none' ? { text: 'Oslo.' } : { calls: [{ name: 'read', arguments: { page: number } }] }),
  ...(number === 2 ? { finish: 'incomplete' } : {}),
  usage: { cost: 0.02 },
})

async function run(stopWhen, more) {
  const { url: serverURL, bodies } = await serve(answer)
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
