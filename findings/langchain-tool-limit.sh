#!/usr/bin/env bash
# LangChain's toolCallLimitMiddleware and a model that asks for two calls in each answer, with three calls allowed for a run.
#
# Seen with langchain 1.5.14, @langchain/core 1.4.0, @langchain/langgraph 1.7.3, @langchain/openai 1.6.0, Node 20.20. With `exitBehavior: 'continue'`
# (the one by default) the model is told of the call over the limit and may go on. At the next answer, all of whose calls are over it,
# the run ends instead: what it returns last is the tool message that tells the model so, which the model never sees, and no answer.
# todoListMiddleware ends a run in the same way if the model writes its list twice in one answer. With `end` the call that was
# still allowed is not executed and gets no result, and stays so in the history; the next question sends it on to the provider.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/core@1.4.0 @langchain/langgraph@1.7.3 @langchain/openai@1.6.0 zod@4.6.7
cat >run.mjs <<'JS'
import { MemorySaver } from '@langchain/langgraph'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, todoListMiddleware, tool, toolCallLimitMiddleware } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const read = (page) => ({ name: 'read', arguments: { page } })
const list = (content) => ({ name: 'write_todos', arguments: { todos: [{ content, status: 'pending' }] } })

/** Asks a question whose answers call, and one that is answered. */
async function ask(middleware, calls) {
  const { url, bodies } = await serve(({ messages }, number) =>
    messages.at(-1).content === 'Hello' ? { text: 'Hello.' } : { calls: calls(number) },
  )
  const executed = []
  const description = 'Read'
  const schema = z.object({ page: z.number() })
  const agent = createAgent({
    model: new ChatOpenAI({ model: 'm', apiKey: 'k', configuration: { baseURL: url } }),
    tools: [tool(({ page }) => `Page ${executed.push(page)}`, { name: 'read', description, schema })],
    checkpointer: new MemorySaver(),
    middleware: [middleware],
  })
  const thread = { configurable: { thread_id: 'thread' } }
  const { messages } = await agent.invoke({ messages: [{ role: 'user', content: 'Which city?' }] }, thread)
  const requests = bodies.length
  await agent.invoke({ messages: [{ role: 'user', content: 'Hello' }] }, thread)
  const next = bodies.at(-1).messages
  const answered = new Set(next.map(({ tool_call_id: id }) => id))
  const asked = next.flatMap(({ tool_calls: all }) => all ?? [])
  return {
    requests,
    executed: executed.length,
    last: `${messages.at(-1).type}: ${messages.at(-1).content}`.slice(0, 50),
    callsWithoutResultAtTheNextQuestion: asked.filter(({ id }) => !answered.has(id)).length,
  }
}

const twoReads = (number) => [read(number), read(-number)]
verdict(
  {
    continue: await ask(toolCallLimitMiddleware({ runLimit: 3 }), twoReads),
    end: await ask(toolCallLimitMiddleware({ runLimit: 3, exitBehavior: 'end' }), twoReads),
    todos: await ask(todoListMiddleware(), () => [list('Read'), list('Write')]),
  },
  {
    continue: {
      requests: 3,
      executed: 3,
      last: 'tool: Tool call limit exceeded. Do not make additi',
      callsWithoutResultAtTheNextQuestion: 0,
    },
    end: {
      requests: 2,
      executed: 2,
      last: 'ai: Tool call limit reached: run limit exceeded (4',
      callsWithoutResultAtTheNextQuestion: 1,
    },
    todos: {
      requests: 1,
      executed: 0,
      last: 'tool: Error: The `write_todos` tool should never b',
      callsWithoutResultAtTheNextQuestion: 0,
    },
  },
)
JS
node run.mjs
