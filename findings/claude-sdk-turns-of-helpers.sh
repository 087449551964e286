#!/usr/bin/env bash
# The Claude Agent SDK with `maxTurns: 3` and an agent whose helper (one of `agents`) asks for 30 commands before it answers.
#
# Seen with @anthropic-ai/claude-agent-sdk 0.3.332, Node 20.20: the model is asked 33 times, and the run is a `success` of 2 turns. The helper is
# held by a `maxTurns` of its own alone, and has none unless it is given one. One and the same result says two things of what was used: its
# `usage` has 2,000 input tokens, those of the agent itself, and its `modelUsage` all 312,000. A program that adds up `usage` misses 99 %.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @anthropic-ai/claude-agent-sdk@0.3.332 zod@4.6.7
cat >run.mjs <<'JS'
import { mkdirSync } from 'node:fs'
import { query } from '@anthropic-ai/claude-agent-sdk'
import { serveMessageStreams, verdict } from './server.mjs'

const isHelper = ({ messages }) => JSON.stringify(messages[0]).includes('Look everywhere.')
const hasResult = ({ messages }) => JSON.stringify(messages).includes('tool_result')
const cwd = `${process.cwd()}/home`
mkdirSync(cwd)

async function run(limits, limitsOfHelper) {
  let commands = 0
  const { url, bodies } = await serveMessageStreams((body) => {
    const usage = { input_tokens: 10_000, output_tokens: 100 }
    if (isHelper(body)) {
      if (commands++ === 30) return { text: 'It is Oslo.', usage }
      return { calls: [{ name: 'Bash', input: { command: `echo ${commands}`, description: 'Looks' } }], usage }
    }
    if (hasResult(body)) return { text: 'Oslo.' }
    const { name } = body.tools.find(({ name }) => name === 'Agent' || name === 'Task')
    const input = { description: 'Look', prompt: 'Look everywhere.', subagent_type: 'finder', run_in_background: false }
    return { calls: [{ name, input }] }
  })
  const env = {
    PATH: process.env.PATH,
    HOME: cwd,
    ANTHROPIC_BASE_URL: url,
    ANTHROPIC_API_KEY: 'k',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_AUTOUPDATER: '1',
  }
  const agents = { finder: { description: 'Finds things', prompt: 'You find.', tools: ['Bash'], ...limitsOfHelper } }
  const options = {
    cwd,
    env,
    agents,
    model: 'claude-sonnet-4-5',
    allowedTools: ['Agent', 'Task', 'Bash'],
    settingSources: [],
    ...limits,
  }
  let result
  for await (const message of query({ prompt: 'Which city?', options })) if (message.type === 'result') result = message
  const { subtype, num_turns, usage, modelUsage } = result
  return {
    requests: bodies.length,
    subtype,
    num_turns,
    'usage.input_tokens': usage.input_tokens,
    'modelUsage inputTokens': Object.values(modelUsage).reduce((sum, { inputTokens }) => sum + inputTokens, 0),
  }
}

verdict(
  {
    'maxTurns 3': await run({ maxTurns: 3 }),
    'maxTurns 3 for the helper too': await run({ maxTurns: 3 }, { maxTurns: 3 }),
  },
  {
    'maxTurns 3': {
      requests: 33,
      subtype: 'success',
      num_turns: 2,
      'usage.input_tokens': 2000,
      'modelUsage inputTokens': 312_000,
    },
    'maxTurns 3 for the helper too': {
      requests: 5,
      subtype: 'success',
      num_turns: 2,
      'usage.input_tokens': 2000,
      'modelUsage inputTokens': 32_000,
    },
  },
)
process.exit()
JS
node run.mjs
