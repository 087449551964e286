#!/usr/bin/env bash
# LangChain's modelCallLimitMiddleware with a limit for each run, in a thread that is kept by a checkpointer.
#
# Seen with langchain 1.5.14, @langchain/core 1.4.0, @langchain/langgraph 1.7.3, @langchain/openai 1.6.0, Node 20.20, and `runLimit: 3`: runs that
# come to an answer have three model calls each, however many they are. After one that met the limit every later run of the thread ends at once,
# says that the run's limit was reached with 3 model calls, and asks the model nothing: the count is kept with the thread, and the end
# by a limit skips what sets it back. `exitBehavior` `end` and `error` do the same. A run that an error of the provider ended leaves what it
# counted to the next one.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/core@1.4.0 @langchain/langgraph@1.7.3 @langchain/openai@1.6.0 zod@4.6.7
cat >run.mjs <<'JS'
import { MemorySaver } from '@langchain/langgraph'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, modelCallLimitMiddleware, tool } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

/** Asks the questions in one thread; returns the model calls of each run, and how it ended. */
async function ask(exitBehavior, questions) {
  // The model answers a greeting, fails at the second step of a failing question, and reads on for ever at any other.
  const { url, bodies } = await serve(({ messages }, number) => {
    const question = messages.findLast(({ role }) => role === 'user').content
    const steps = messages.slice(messages.findLastIndex(({ role }) => role === 'user')).length
    if (question === 'Hello') return { text: 'Hello.' }
    if (question === 'Fail' && steps > 1) return { status: 400 }
    return { calls: [{ name: 'read', arguments: { page: number } }] }
  })
  const agent = createAgent({
    model: new ChatOpenAI({ model: 'm', apiKey: 'k', maxRetries: 0, configuration: { baseURL: url } }),
    tools: [
      tool(({ page }) => `Page ${page}`, {
        name: 'read',
        description: 'Read',
        schema: z.object({ page: z.number() }),
      }),
    ],
    checkpointer: new MemorySaver(),
    middleware: [modelCallLimitMiddleware({ runLimit: 3, exitBehavior })],
  })
  const runs = []
  for (const content of questions) {
    const before = bodies.length
    const end = await agent
      .invoke({ messages: [{ role: 'user', content }] }, { configurable: { thread_id: 'thread' } })
      .then(({ messages }) => messages.at(-1).content, ({ message }) => message)
    runs.push(`${content}: ${bodies.length - before} calls, ${/limit/.test(end) ? 'limit' : end}`)
  }
  return runs
}

const greetings = ['Hello', 'Hello', 'Hello', 'Hello']
const seen = {
  end: await ask('end', [...greetings, 'Which city?', 'Hello', 'Hello']),
  error: await ask('error', [...greetings, 'Which city?', 'Hello', 'Hello']),
  afterAnError: await ask('end', ['Fail', 'Which city?', 'Hello']),
}
const both = [...greetings.map(() => 'Hello: 1 calls, Hello.'), 'Which city?: 3 calls, limit']
both.push('Hello: 0 calls, limit', 'Hello: 0 calls, limit')
verdict(seen, {
  end: both,
  error: both,
  afterAnError: ['Fail: 2 calls, 400 scripted', 'Which city?: 2 calls, limit', 'Hello: 0 calls, limit'],
})
JS
node run.mjs
