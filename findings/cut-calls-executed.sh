#!/usr/bin/env bash
# Five ways of running an agent, and a call that the output limit cuts: the model writes a file of three lines, pays a bill of 1250, or lists
# the 100 newest orders of a customer (both of these arguments are optional). Each cut answer has the reason `length`.
#
# Seen with langchain 1.5.14, @langchain/core 1.4.0, @langchain/langgraph 1.7.3, @langchain/openai 1.6.0, @tanstack/ai 0.58.0, @tanstack/ai-openai 0.23.1,
# ai 7.0.173 and @openai/agents 0.20.0, Node 20.20. LangChain's agent, streamed as `messages`, as a chat shows them, closes what was cut and executes
# it: half the file is written, 12 are paid, one order is listed. The model is told of whole calls that were done, and goes on. The same
# agent, invoked, ends its run there and executes nothing. TanStack takes a cut call for one without arguments, which lists the orders of everybody. ai and
# OpenAI Agents execute none and ask the model again.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/core@1.4.0 @langchain/langgraph@1.7.3 @langchain/openai@1.6.0 \
  @tanstack/ai@0.58.0 @tanstack/ai-openai@0.23.1 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 @openai/agents@0.20.0 openai@7.59.0 zod@4.6.7
cat >run.mjs <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { ChatOpenAI } from '@langchain/openai'
import { Agent, OpenAIChatCompletionsModel, Runner, tool as agentsTool } from '@openai/agents'
import { chat, toolDefinition } from '@tanstack/ai'
import { createOpenaiChatCompletions } from '@tanstack/ai-openai'
import { isStepCount, streamText, tool as aiTool } from 'ai'
import { createAgent, tool } from 'langchain'
import OpenAI from 'openai'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const prompt = 'Write the report, and pay the bill.'
const messages = [{ role: 'user', content: prompt }]
const parts = {
  write: z.object({ path: z.string(), content: z.string() }),
  pay: z.object({ to: z.string(), amount: z.number() }),
  orders: z.object({ customer: z.string().nullish(), newest: z.number().nullish() }),
}
const cut = {
  write: '{"path":"report.md","content":"Line 1\\nLine 2\\nLin',
  pay: '{"to":"ACME","amount":12',
  orders: '{"customer":"ACME","newest":1',
}
const description = 'A tool'

const langchain = (url, name, execute) =>
  createAgent({
    model: new ChatOpenAI({ model: 'm', apiKey: 'k', maxRetries: 0, configuration: { baseURL: url } }),
    tools: [tool(execute, { name, description, schema: parts[name] })],
  })
const agents = {
  'langchain, streamed': async (...given) => {
    for await (const _ of await langchain(...given).stream({ messages }, { streamMode: 'messages' }));
  },
  'langchain, invoked': (...given) => langchain(...given).invoke({ messages }),
  tanstack: (url, name, execute) => {
    const adapter = createOpenaiChatCompletions('gpt-5', 'k', { baseURL: url })
    const tools = [
      toolDefinition({ name, description, inputSchema: parts[name] }).server(async (given) => execute(given)),
    ]
    return chat({ adapter, messages, tools, stream: false, debug: false })
  },
  ai: (url, name, execute) => {
    const model = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL: url })('m')
    const tools = { [name]: aiTool({ description, inputSchema: parts[name], execute }) }
    return streamText({ model, prompt, tools, stopWhen: isStepCount(3) }).text
  },
  'openai agents': async (url, name, execute) => {
    const client = new OpenAI({ apiKey: 'k', baseURL: url, maxRetries: 0 })
    const tools = [agentsTool({ name, description, parameters: parts[name], execute })]
    const agent = new Agent({ name: 'a', model: new OpenAIChatCompletionsModel(client, 'm'), tools })
    const run = await new Runner({ tracingDisabled: true }).run(agent, prompt, { stream: true })
    for await (const _ of run);
    await run.completed
  },
}

const seen = {}
for (const [agent, run] of Object.entries(agents)) {
  seen[agent] = {}
  for (const name of Object.keys(cut)) {
    const executed = []
    const { url, bodies } = await serve((_, number) =>
      number === 1 ? { calls: [{ name, cut: cut[name] }], finish: 'length' } : { text: 'Done.' },
    )
    await run(url, name, (given) => {
      executed.push(given)
      return 'Done.'
    })
    seen[agent][name] = [`${bodies.length} requests`, ...executed]
  }
}
const askedAgain = { write: ['2 requests'], pay: ['2 requests'], orders: ['2 requests'] }
verdict(seen, {
  'langchain, streamed': {
    write: ['2 requests', { path: 'report.md', content: 'Line 1\nLine 2\nLin' }],
    pay: ['2 requests', { to: 'ACME', amount: 12 }],
    orders: ['2 requests', { customer: 'ACME', newest: 1 }],
  },
  'langchain, invoked': { write: ['1 requests'], pay: ['1 requests'], orders: ['1 requests'] },
  tanstack: { write: ['2 requests'], pay: ['2 requests'], orders: ['2 requests', {}] },
  ai: askedAgain,
  'openai agents': askedAgain,
})
process.exit()
JS
node run.mjs
