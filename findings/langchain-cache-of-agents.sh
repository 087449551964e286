#!/usr/bin/env bash
# LangChain's cache of answers (`cache` of a model), and ten equal questions at temperature 0: to the model itself, and to agents and graphs.
#
# Seen with langchain 1.5.14, @langchain/openai 1.6.0, @langchain/langgraph 1.7.3, Node 20.20: the model itself is asked once. The same model in an
# agent, with tools or without, is asked for each question anew. LangGraph puts the id of the task into the config of every node, and that
# becomes a part of the cache's key, though it is in no request. A node of a graph finds the answer where it calls the model without its
# config, and does not where it passes it on. The requests are equal; each adds an entry, with the text of the whole history as its key, that
# no later request can find.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/openai@1.6.0 @langchain/core@1.4.0 @langchain/langgraph@1.7.3 zod@4.6.7
cat >run.mjs <<'JS'
import { BaseCache } from '@langchain/core/caches'
import { MessagesAnnotation, START, StateGraph } from '@langchain/langgraph'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, tool } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

/** A cache as InMemoryCache is, which says how many entries it has. */
class Cache extends BaseCache {
  entries = new Map()
  lookup = async (...key) => this.entries.get(JSON.stringify(key)) ?? null
  update = async (prompt, model, answer) => {
    this.entries.set(JSON.stringify([prompt, model]), answer)
  }
}

const content = 'Which city?'
const page = 'word '.repeat(4000)
const read = tool(() => page, { name: 'read', description: 'Reads a page', schema: z.object({ page: z.number() }) })

async function run(askOf) {
  const { url, bodies } = await serve(({ tools, messages }) =>
    tools && messages.at(-1).role === 'user'
      ? { calls: [{ id: 'call_1', name: 'read', arguments: { page: 1 } }] }
      : { text: 'Oslo.' },
  )
  const cache = new Cache()
  const model = new ChatOpenAI({ model: 'm', apiKey: 'k', temperature: 0, cache, configuration: { baseURL: url } })
  const ask = askOf(model)
  for (let question = 0; question < 10; question++) await ask()
  return {
    requests: bodies.length,
    'different requests': new Set(bodies.map((body) => JSON.stringify(body))).size,
    'entries of the cache': cache.entries.size,
    'characters of their keys': Math.round([...cache.entries.keys()].join('').length / 10_000) * 10_000,
  }
}
const messages = [{ role: 'user', content }]
const agentOf = (tools) => (model) => {
  const agent = createAgent({ model, tools })
  return () => agent.invoke({ messages })
}
const graphOf = (passesOn) => (model) => {
  const answer = async (state, config) => ({
    messages: await model.invoke(state.messages, passesOn ? config : undefined),
  })
  const graph = new StateGraph(MessagesAnnotation).addNode('answer', answer).addEdge(START, 'answer').compile()
  return () => graph.invoke({ messages })
}

const once = {
  requests: 1,
  'different requests': 1,
  'entries of the cache': 1,
  'characters of their keys': 0,
}
const never = {
  requests: 10,
  'different requests': 1,
  'entries of the cache': 10,
  'characters of their keys': 10_000,
}
verdict(
  {
    'the model': await run((model) => () => model.invoke(content)),
    'a node of a graph': await run(graphOf(false)),
    'a node that passes its config on': await run(graphOf(true)),
    'an agent': await run(agentOf([])),
    'an agent with a tool': await run(agentOf([read])),
  },
  {
    'the model': once,
    'a node of a graph': once,
    'a node that passes its config on': never,
    'an agent': never,
    'an agent with a tool': {
      requests: 20,
      'different requests': 2,
      'entries of the cache': 20,
      'characters of their keys': 220_000,
    },
  },
)
process.exit()
JS
node run.mjs
