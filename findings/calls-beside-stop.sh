#!/usr/bin/env bash
# Five frameworks, one response: it holds a tool call, and its finish_reason is `stop` (several servers that speak Chat
# Completions say so; the API's reference ties calls to no reason).
#
# Seen with openai 7.57.0 (runTools), ai 7.0.173, langchain 1.5.14 (createAgent), @openai/agents 0.20.0, Node 20.20:
# all four run the tool and ask the model again.
# @strands-agents/sdk 1.19.0 does neither: `invoke` resolves with `endTurn`, the tool never ran, and the call stays without
# a result in the agent's history. The agent's next `invoke` sends that history: assistant with a call, then a user
# message, which OpenAI refuses with 400 ("must be followed by tool messages").
# So the reason decides in Strands what the calls decide everywhere else.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error openai@7.57.0 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 \
  langchain@1.5.14 @langchain/core@1.4.0 @langchain/openai@1.6.0 @openai/agents@0.20.0 zod@4.6.7
# Its peer is openai 6.
mkdir strands && cp package.json server.mjs strands
(cd strands && echo '{"private": true, "type": "module"}' >package.json &&
  npm install --no-audit --no-fund --loglevel=error @strands-agents/sdk@1.19.0 openai@6.49.0 zod@4.6.7)

cat >strands/strands.mjs <<'JS'
import { Agent, tool } from '@strands-agents/sdk'
import { OpenAIModel } from '@strands-agents/sdk/models/openai'
import { z } from 'zod'

export async function strands({ url, bodies }, found) {
  const search = tool({ name: 'search', description: 'Search', inputSchema: z.object({ query: z.string() }), callback: found })
  const model = new OpenAIModel({ api: 'chat', modelId: 'm', apiKey: 'k', clientConfig: { baseURL: url } })
  const agent = new Agent({ model, tools: [search], printer: false })
  const { stopReason } = await agent.invoke('Which city?')
  const requests = bodies.length
  await agent.invoke('Are you there?')
  const next = bodies[requests].messages.map(({ role, tool_calls: calls }) => (calls ? `${role} with a call` : role))
  return { stopReason, requests, next }
}
JS
cat >run.mjs <<'JS'
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool as agentsTool } from '@openai/agents'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { ChatOpenAI } from '@langchain/openai'
import { generateText, isStepCount, tool as aiTool } from 'ai'
import { createAgent, tool as langTool } from 'langchain'
import OpenAI from 'openai'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'
import { strands } from './strands/strands.mjs'

setTracingDisabled(true)
const schema = z.object({ query: z.string() })
const description = 'Search'
const question = 'Which city?'
const runs = {
  async openai({ url }, found) {
    const parameters = { type: 'object', properties: { query: { type: 'string' } } }
    const search = { name: 'search', description, parameters, function: found }
    const messages = [{ role: 'user', content: question }]
    const client = new OpenAI({ apiKey: 'k', baseURL: url })
    await client.chat.completions.runTools({ model: 'm', messages, tools: [{ type: 'function', function: search }] }).done()
  },
  async ai({ url }, found) {
    const model = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL: url })('m')
    const search = aiTool({ description, inputSchema: schema, execute: found })
    await generateText({ model, prompt: question, tools: { search }, stopWhen: isStepCount(5) })
  },
  async langchain({ url }, found) {
    const model = new ChatOpenAI({ model: 'm', apiKey: 'k', configuration: { baseURL: url } })
    const agent = createAgent({ model, tools: [langTool(found, { name: 'search', description, schema })] })
    await agent.invoke({ messages: [{ role: 'user', content: question }] })
  },
  async agents({ url }, found) {
    const openAIClient = new OpenAI({ apiKey: 'k', baseURL: url })
    const runner = new Runner({ modelProvider: new OpenAIProvider({ openAIClient, useResponses: false }) })
    const search = agentsTool({ name: 'search', description, parameters: schema, execute: found })
    await runner.run(new Agent({ name: 'a', model: 'm', tools: [search] }), question)
  },
  strands,
}
const seen = {}
for (const [name, run] of Object.entries(runs)) {
  const model = await serve((_, number) =>
    number === 1 ? { calls: [{ name: 'search', arguments: { query: 'city' } }], finish: 'stop' } : { text: 'Oslo.' },
  )
  let executed = 0
  const more = await run(model, async () => `found ${++executed}`)
  seen[name] = more ? { executed, ...more } : { executed, requests: model.bodies.length }
}
verdict(seen, {
  openai: { executed: 1, requests: 2 },
  ai: { executed: 1, requests: 2 },
  langchain: { executed: 1, requests: 2 },
  agents: { executed: 1, requests: 2 },
  strands: { executed: 0, stopReason: 'endTurn', requests: 1, next: ['user', 'assistant with a call', 'user'] },
})
JS
node run.mjs
