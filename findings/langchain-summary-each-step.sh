#!/usr/bin/env bash
# LangChain's summarization middleware with a trigger in tokens and what it keeps left at its own number (20 messages).
#
# Seen with langchain 1.5.14, @langchain/core 1.4.0, @langchain/openai 1.6.0, Node 20.20: an agent whose tool results are
# about 700 tokens each is to be summarized at 4,000 tokens. Nothing happens until it has more than 20 messages (10 steps).
# What is kept then is more than what triggers a summary, so from there on a summary is asked for before every step, each
# one of the summary before and the two messages of one step. The number of model calls doubles, the history never falls below
# the trigger, and the user's question is in it only as far as one summary after another repeats it. Nothing
# warns, as trigger and keep are each valid alone.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/core@1.4.0 @langchain/openai@1.6.0 zod@4.6.7
cat >run.mjs <<'JS'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, summarizationMiddleware, tool } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const STEPS = 24
const question = 'Which city has the tallest tower?'
let steps = 0
const { url, bodies } = await serve((body) => {
  if (!body.tools) return { text: 'Several pages were read.' }
  return ++steps > STEPS ? { text: 'Oslo.' } : { calls: [{ name: 'read', arguments: { page: steps } }] }
})
const model = new ChatOpenAI({ model: 'm', apiKey: 'k', configuration: { baseURL: url } })
const read = tool(({ page }) => `Page ${page}. ${'Towers and more. '.repeat(160)}`, {
  name: 'read',
  description: 'Read a page',
  schema: z.object({ page: z.number() }),
})
const agent = createAgent({
  model,
  tools: [read],
  middleware: [summarizationMiddleware({ model, trigger: { tokens: 4000 } })],
})
await agent.invoke({ messages: [{ role: 'user', content: question }] }, { recursionLimit: 200 })

const kinds = bodies.map((body) => (body.tools ? 'step' : 'summary'))
const first = kinds.indexOf('summary')
const last = bodies.at(-1).messages
verdict(
  {
    stepsBeforeTheFirstSummary: first,
    afterwards: [...new Set(kinds.slice(first).join(' ').match(/summary step|step step|summary summary/g))],
    summaries: kinds.filter((kind) => kind === 'summary').length,
    modelCalls: kinds.length,
    lastHistoryIsLongerThanTheTrigger: JSON.stringify(last).length / 4 > 4000,
    questionIsInTheLastHistory: JSON.stringify(last).includes(question),
  },
  {
    stepsBeforeTheFirstSummary: 10,
    afterwards: ['summary step'],
    summaries: 15,
    modelCalls: 40,
    lastHistoryIsLongerThanTheTrigger: true,
    questionIsInTheLastHistory: false,
  },
)
JS
node run.mjs
