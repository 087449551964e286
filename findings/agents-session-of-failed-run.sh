#!/usr/bin/env bash
# OpenAI Agents with a session, whose run ends at `maxTurns`, at an error of the provider or by an abort, and another question after it.
#
# Seen with @openai/agents 0.20.0 and openai 7.59.0, Node 20.20, over Chat Completions; what the session holds at the next question:
#                                  a whole run            a streamed one
#   it came to an answer           everything             everything
#   `maxTurns`, an error           nothing                the question alone
#   an abort in the second step    everything so far      the question alone
# So after `maxTurns` "go on" begins with nothing: calls that were executed, and what they found, are in no history. A whole run does not even
# keep the question, so that the model is asked for a second one that follows none; the same run keeps every step if its user aborts it.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @openai/agents@0.20.0 openai@7.59.0 zod@4.6.7
cat >run.mjs <<'JS'
import { Agent, MemorySession, OpenAIChatCompletionsModel, Runner, tool } from '@openai/agents'
import OpenAI from 'openai'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const call = (page) => ({ name: 'read', arguments: { page } })
const isNext = ({ messages }) => messages.at(-1).content === 'And when?'
/** Each model reads two pages in each of its steps, and answers the next question. */
const models = {
  answer: (_, number) => (number > 2 ? { text: 'Oslo.' } : { calls: [call(number), call(-number)] }),
  maxTurns: (body, number) => (isNext(body) ? { text: 'In 1912.' } : { calls: [call(number), call(-number)] }),
  error: (body, number) => {
    if (isNext(body)) return { text: 'In 1912.' }
    if (number === 3) return { status: 400 }
    return { calls: [call(number), call(-number)] }
  },
  abort: (body, number) => (isNext(body) ? { text: 'In 1912.' } : { calls: [call(number), call(-number)] }),
}

async function nextQuestion(name, stream) {
  const { url, bodies } = await serve(models[name])
  const controller = new AbortController()
  const read = tool({
    name: 'read',
    description: 'Read',
    parameters: z.object({ page: z.number() }),
    execute: async ({ page }) => {
      if (name === 'abort' && page === 2) controller.abort()
      return `Page ${page}`
    },
  })
  const client = new OpenAI({ apiKey: 'k', baseURL: url, maxRetries: 0 })
  const agent = new Agent({ name: 'a', model: new OpenAIChatCompletionsModel(client, 'm'), tools: [read] })
  const runner = new Runner({ tracingDisabled: true })
  const session = new MemorySession()
  try {
    const run = await runner.run(agent, 'Which city?', { session, stream, maxTurns: 3, signal: controller.signal })
    if (stream) {
      for await (const _ of run);
      await run.completed
    }
  } catch {}
  await runner.run(agent, 'And when?', { session })
  return bodies
    .at(-1)
    .messages.map(({ role, content, tool_calls: calls }) => (role === 'user' ? content : calls ? 'calls' : role))
    .join(', ')
}

const seen = {}
for (const name of Object.keys(models))
  seen[name] = { whole: await nextQuestion(name, false), streamed: await nextQuestion(name, true) }
const steps = 'calls, tool, tool, calls, tool, tool'
const failed = { whole: 'And when?', streamed: 'Which city?, And when?' }
const everything = `Which city?, ${steps}, assistant, And when?`
verdict(seen, {
  answer: { whole: everything, streamed: everything },
  maxTurns: failed,
  error: failed,
  abort: { whole: `Which city?, ${steps}, And when?`, streamed: 'Which city?, And when?' },
})
process.exit()
JS
node run.mjs
