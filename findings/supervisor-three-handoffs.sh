#!/usr/bin/env bash
# LangGraph's supervisor with three agents, and a model of Anthropic that hands off to all three in one answer, as it calls tools in parallel.
#
# Seen with @langchain/langgraph-supervisor 1.1.3, @langchain/langgraph 1.7.3, @langchain/anthropic 1.5.11, @langchain/core 1.4.0, Node 20.20: the first
# agent is asked, the other two never, and nothing says so. Their handoffs stay in the history as calls without a result, of which every
# later request of the thread has two, the first one to the agent that was asked among them. Only with ChatOpenAI does the supervisor ask
# for one call at a time.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @langchain/langgraph-supervisor@1.1.3 @langchain/langgraph@1.7.3 @langchain/core@1.4.0 \
  @langchain/anthropic@1.5.11 @langchain/openai@1.6.0
cat >run.mjs <<'JS'
import { ChatAnthropic } from '@langchain/anthropic'
import { MemorySaver } from '@langchain/langgraph'
import { createReactAgent } from '@langchain/langgraph/prebuilt'
import { createSupervisor } from '@langchain/langgraph-supervisor'
import { ChatOpenAI } from '@langchain/openai'
import { serve, serveMessageStreams, verdict } from './server.mjs'

const names = ['anna', 'bert', 'carl']
/** The supervisor's model hands off to all three, and answers once it is told of anything; the agents answer at once. */
const { url, bodies } = await serveMessageStreams(({ system, messages }) => {
  if (!JSON.stringify(system).includes('You lead.')) return { text: 'It is Oslo.' }
  const question = messages.findLastIndex(
    ({ role, content }) => role === 'user' && !JSON.stringify(content).includes('tool_result'),
  )
  if (question < messages.length - 1 || question > 0) return { text: 'Oslo.' }
  return { calls: names.map((name) => ({ name: `transfer_to_${name}`, input: {} })) }
})
const anthropic = () =>
  new ChatAnthropic({ model: 'claude-sonnet-4-5', apiKey: 'k', streaming: true, anthropicApiUrl: url })
const make = (llm) => {
  const agents = names.map((name) => createReactAgent({ llm: llm(), tools: [], name, prompt: `You are ${name}.` }))
  return createSupervisor({ agents, llm: llm(), prompt: 'You lead.' }).compile({ checkpointer: new MemorySaver() })
}
const ask = (app, content) =>
  app.invoke({ messages: [{ role: 'user', content }] }, { configurable: { thread_id: 'thread' } })

const app = make(anthropic)
const { messages } = await ask(app, 'Ask all three.')
await ask(app, 'And when?')
const who = ({ system }) => JSON.stringify(system).match(/You lead|anna|bert|carl/)[0]
const blocks = ({ messages }, type) =>
  messages.flatMap(({ content }) => (Array.isArray(content) ? content.filter((block) => block.type === type) : []))
const withoutResult = (body) => {
  const results = blocks(body, 'tool_result').map((block) => block.tool_use_id)
  return blocks(body, 'tool_use')
    .filter(({ id }) => !results.includes(id))
    .map(({ name }) => name)
}
const chat = await serve(() => ({ text: 'Oslo.' }))
await ask(
  make(() => new ChatOpenAI({ model: 'm', apiKey: 'k', configuration: { baseURL: chat.url } })),
  'Ask all three.',
)
verdict(
  {
    requests: bodies.map((body) => ({ to: who(body), callsWithoutResult: withoutResult(body).join(', ') })),
    answer: messages.at(-1).text,
    'parallel_tool_calls of ChatOpenAI': chat.bodies[0].parallel_tool_calls,
  },
  {
    requests: [
      { to: 'You lead', callsWithoutResult: '' },
      { to: 'anna', callsWithoutResult: 'transfer_to_bert, transfer_to_carl' },
      { to: 'You lead', callsWithoutResult: 'transfer_to_bert, transfer_to_carl' },
      { to: 'You lead', callsWithoutResult: 'transfer_to_bert, transfer_to_carl' },
    ],
    answer: 'Oslo.',
    'parallel_tool_calls of ChatOpenAI': false,
  },
)
process.exit()
JS
node run.mjs
