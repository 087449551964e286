#!/usr/bin/env bash
# LangGraph's supervisor with one agent, left at its own limit of steps, whose model hands off for ever.
#
# Seen with @langchain/langgraph-supervisor 1.1.3, @langchain/langgraph 1.7.3, @langchain/openai 1.6.0, @langchain/core 1.4.0, Node 20.20: the limit is 25, and
# "Recursion limit of 25 reached" is thrown after 25 requests, 85, or 157: an agent is one step of its supervisor, and begins with all 25
# steps anew each time that it is asked. A limit of 10 lets 30 requests pass. So as a cap on requests it holds to the square.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @langchain/langgraph-supervisor@1.1.3 @langchain/langgraph@1.7.3 @langchain/core@1.4.0 \
  @langchain/openai@1.6.0 zod@4.6.7
cat >run.mjs <<'JS'
import { tool } from '@langchain/core/tools'
import { createReactAgent } from '@langchain/langgraph/prebuilt'
import { createSupervisor } from '@langchain/langgraph-supervisor'
import { ChatOpenAI } from '@langchain/openai'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const read = tool(({ page }) => `Page ${page}`, {
  name: 'read',
  description: 'Reads',
  schema: z.object({ page: z.number() }),
})

/** The supervisor hands off for ever; its agent reads some pages each time, and answers. */
async function run(pages, config) {
  let asked = 0
  const { url, bodies } = await serve(({ messages }) => {
    if (messages[0].content !== 'You read.') {
      asked = 0
      return { calls: [{ name: 'transfer_to_anna', arguments: {} }] }
    }
    return asked++ === pages ? { text: 'Not there.' } : { calls: [{ name: 'read', arguments: { page: asked } }] }
  })
  const llm = new ChatOpenAI({ model: 'm', apiKey: 'k', maxRetries: 0, configuration: { baseURL: url } })
  const anna = createReactAgent({ llm, tools: [read], name: 'anna', prompt: 'You read.' })
  const app = createSupervisor({ agents: [anna], llm, prompt: 'You lead.' }).compile()
  const error = await app
    .invoke({ messages: [{ role: 'user', content: 'Which city?' }] }, config)
    .catch(({ message }) => message)
  const agents = bodies.filter(({ messages }) => messages[0].content === 'You read.').length
  return { requests: bodies.length, ofTheAgent: agents, error: error.split('.')[0] }
}

verdict(
  {
    'an agent of one request': await run(0),
    'an agent of 6 requests': await run(5),
    'an agent of 12 requests': await run(11),
    'an agent of 5 requests, recursionLimit 10': await run(4, { recursionLimit: 10 }),
  },
  {
    'an agent of one request': {
      requests: 25,
      ofTheAgent: 12,
      error: 'Recursion limit of 25 reached without hitting a stop condition',
    },
    'an agent of 6 requests': {
      requests: 85,
      ofTheAgent: 72,
      error: 'Recursion limit of 25 reached without hitting a stop condition',
    },
    'an agent of 12 requests': {
      requests: 157,
      ofTheAgent: 144,
      error: 'Recursion limit of 25 reached without hitting a stop condition',
    },
    'an agent of 5 requests, recursionLimit 10': {
      requests: 30,
      ofTheAgent: 25,
      error: 'Recursion limit of 10 reached without hitting a stop condition',
    },
  },
)
process.exit()
JS
node run.mjs
