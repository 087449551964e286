#!/usr/bin/env bash
# LangChain's agent and a server that numbers its answers as Ollama does over Chat Completions, `chatcmpl-` and one of 999 numbers at random,
# when a number is drawn that the run has had before.
#
# Seen with langchain 1.5.14, @langchain/openai 1.6.0, @langchain/langgraph 1.7.3, Node 20.20: the later answer takes the place of the earlier
# one in the history. The run ends there, without an error: its call is not executed, and the last message is the result before it. Where it
# is the final answer, it stands among the steps. In a chat with a checkpointer the last message is then the user's own question, and the
# next request says that an older question was answered so. The chance of two equal numbers is 17 % in 20 answers of a thread, 55 % in
# 40, 99 % in 100. The stream of `messages` shows nothing of it.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/openai@1.6.0 @langchain/core@1.4.0 @langchain/langgraph@1.7.3 zod@4.6.7
cat >run.mjs <<'JS'
import { MemorySaver } from '@langchain/langgraph'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, tool } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const read = tool(({ page }) => `Page ${page}`, {
  name: 'read',
  description: 'Reads a page',
  schema: z.object({ page: z.number() }),
})
const agentOf = (baseURL, more) =>
  createAgent({ model: new ChatOpenAI({ model: 'gpt-oss:20b', apiKey: 'k', configuration: { baseURL } }), ...more })
const ask = (content) => ({ messages: [{ role: 'user', content }] })
const shown = ({ role, type, content, tool_calls: calls }) =>
  `${role ?? type}: ${[content, calls?.length > 0 ? 'and a call' : ''].join(' ').trim()}`

/** A model that reads six pages and answers, of whose answers one, the `later`, has the id of the second. */
async function run(later, streamed) {
  const { url, bodies } = await serve((_, number) => ({
    id: `chatcmpl-${number === later ? 2 : number}`,
    text: number < 7 ? `I read ${number}.` : 'Oslo.',
    calls: number < 7 ? [{ name: 'read', arguments: { page: number } }] : [],
  }))
  const agent = agentOf(url, { tools: [read] })
  let messages
  if (streamed)
    for await (const state of await agent.stream(ask('Which city?'), { streamMode: 'values' }))
      messages = state.messages
  else messages = (await agent.invoke(ask('Which city?'))).messages
  return { requests: bodies.length, history: messages.map(shown) }
}

/** A chat of four questions, of whose answers the third has the id of the first. */
async function chat() {
  const { url, bodies } = await serve((_, number) => ({
    id: `chatcmpl-${number === 3 ? 1 : number}`,
    text: `Answer ${number}`,
  }))
  const agent = agentOf(url, { tools: [], checkpointer: new MemorySaver() })
  const answers = []
  for (const number of [1, 2, 3, 4]) {
    const { messages } = await agent.invoke(ask(`Question ${number}`), { configurable: { thread_id: 't' } })
    answers.push(messages.at(-1).content)
  }
  return { 'last messages': answers, 'last request': bodies.at(-1).messages.map(shown) }
}

const step = (number) => [`ai: I read ${number}. and a call`, `tool: Page ${number}`]
const cut = ['human: Which city?', ...step(1), 'ai: I read 4. and a call', 'tool: Page 2', ...step(3)]
const { 'last messages': lastMessages, 'last request': lastRequest } = await chat()
verdict(
  {
    'all ids differ': (await run(0)).history.at(-1),
    'the fourth like the second': await run(4),
    'the same, streamed': await run(4, true),
    'the final like the second': await run(7),
    'a chat': { lastMessages, lastRequest },
  },
  {
    'all ids differ': 'ai: Oslo.',
    'the fourth like the second': { requests: 4, history: cut },
    'the same, streamed': { requests: 4, history: cut },
    'the final like the second': {
      requests: 7,
      history: ['human: Which city?', ...step(1), 'ai: Oslo.', 'tool: Page 2', ...[3, 4, 5, 6].flatMap(step)],
    },
    'a chat': {
      lastMessages: ['Answer 1', 'Answer 2', 'Question 3', 'Answer 4'],
      lastRequest: [
        'user: Question 1',
        'assistant: Answer 3',
        'user: Question 2',
        'assistant: Answer 2',
        'user: Question 3',
        'user: Question 4',
      ],
    },
  },
)
process.exit()
JS
node run.mjs
