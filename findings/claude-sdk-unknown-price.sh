#!/usr/bin/env bash
# The Claude Agent SDK with `maxBudgetUsd: 0.25` and a model that asks for a command in every answer, each of 10,000 tokens in and 100 out.
#
# Seen with @anthropic-ai/claude-agent-sdk 0.3.332, Node 20.20: a model that it does not know, as gateways and servers of one's own serve them behind
# ANTHROPIC_BASE_URL, is neither free nor without a limit: it is billed like claude-opus-5-5. The budget is used up after 6 requests, with
# claude-haiku-4-5 after 24, and `total_cost_usd` says that it was spent. That the price is a guess is in `costBasis` of `modelUsage` alone.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @anthropic-ai/claude-agent-sdk@0.3.332 zod@4.6.7
cat >run.mjs <<'JS'
import { mkdirSync } from 'node:fs'
import { query } from '@anthropic-ai/claude-agent-sdk'
import { serveMessageStreams, verdict } from './server.mjs'

const cwd = `${process.cwd()}/home`
mkdirSync(cwd)

async function run(model) {
  const { url, bodies } = await serveMessageStreams((_, number) => {
    const usage = { input_tokens: 10_000, output_tokens: 100 }
    return { calls: [{ name: 'Bash', input: { command: `echo ${number}`, description: 'Looks' } }], usage }
  })
  const env = {
    PATH: process.env.PATH,
    HOME: cwd,
    ANTHROPIC_BASE_URL: url,
    ANTHROPIC_API_KEY: 'k',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_AUTOUPDATER: '1',
  }
  const options = { cwd, env, model, allowedTools: ['Bash'], settingSources: [], maxBudgetUsd: 0.25, maxTurns: 200 }
  let result
  try {
    for await (const message of query({ prompt: 'Which city?', options }))
      if (message.type === 'result') result = message
  } catch {}
  const [{ costBasis }] = Object.values(result.modelUsage)
  return `${bodies.length} requests, ${result.total_cost_usd.toFixed(2)} dollars, ${result.subtype}, cost basis ${costBasis}`
}

const seen = {}
for (const model of ['claude-haiku-4-5', 'claude-opus-5-5', 'gpt-5-nano', 'qwen3-coder:30b'])
  seen[model] = await run(model)
verdict(seen, {
  'claude-haiku-4-5': '24 requests, 0.25 dollars, error_max_budget_usd, cost basis list',
  'claude-opus-5-5': '6 requests, 0.25 dollars, error_max_budget_usd, cost basis list',
  'gpt-5-nano': '6 requests, 0.25 dollars, error_max_budget_usd, cost basis unknown',
  'qwen3-coder:30b': '6 requests, 0.25 dollars, error_max_budget_usd, cost basis unknown',
})
process.exit()
JS
node run.mjs
