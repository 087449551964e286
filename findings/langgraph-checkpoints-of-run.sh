#!/usr/bin/env bash
# What LangGraph's MemorySaver holds after one run of an agent that reads a page of 5,000 characters in every step.
#
# Seen with langchain 1.5.14, @langchain/langgraph 1.7.3, @langchain/langgraph-checkpoint 1.2.2, Node 20.20: each step leaves two checkpoints, and in
# both, and in the task of each tool call, the whole history until then. A run of 100 steps, whose history has half a megabyte, holds
# 127 MB, and one of 200 steps half a gigabyte, 480 times its history, for as long as the process lives. With `durability: 'exit'` it holds the
# history once.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/openai@1.6.0 @langchain/core@1.4.0 @langchain/langgraph@1.7.3 \
  @langchain/langgraph-checkpoint@1.2.2 zod@4.6.7
cat >run.mjs <<'JS'
import { MemorySaver } from '@langchain/langgraph'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, tool } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const schema = z.object({ page: z.number() })
const read = tool(() => 'word '.repeat(1000), { name: 'read', description: 'Reads a page', schema })

/** Runs an agent for a number of steps; returns how many checkpoints are left, and how many times the history they hold. */
async function run(steps, more) {
  const { url, bodies } = await serve((_, number) =>
    number > steps ? { text: 'Oslo.' } : { calls: [{ name: 'read', arguments: { page: number } }] },
  )
  const checkpointer = new MemorySaver()
  const model = new ChatOpenAI({ model: 'm', apiKey: 'k', configuration: { baseURL: url } })
  const config = { configurable: { thread_id: 't' }, recursionLimit: 1000, ...more }
  await createAgent({ model, tools: [read], checkpointer }).invoke(
    { messages: [{ role: 'user', content: 'Which city?' }] },
    config,
  )
  const checkpoints = Object.values(checkpointer.storage.t).flatMap((byId) => Object.values(byId))
  const writes = Object.values(checkpointer.writes).flatMap((byTask) => Object.values(byTask))
  const held = [...checkpoints.flat(), ...writes.map((write) => write[2])].reduce(
    (sum, data) => sum + (data instanceof Uint8Array ? data.length : 0),
    0,
  )
  const history = JSON.stringify(bodies.at(-1).messages).length
  const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`
  process.stdout.write(`${steps} steps: ${megabytes(history)} of history, ${megabytes(held)} held\n`)
  return { checkpoints: checkpoints.length, timesTheHistory: Math.round(held / history / 10) * 10 || 'about once' }
}

verdict(
  { 50: await run(50), 100: await run(100), 'durability: exit': await run(100, { durability: 'exit' }) },
  {
    50: { checkpoints: 103, timesTheHistory: 120 },
    100: { checkpoints: 203, timesTheHistory: 240 },
    'durability: exit': { checkpoints: 1, timesTheHistory: 'about once' },
  },
)
process.exit()
JS
node run.mjs
