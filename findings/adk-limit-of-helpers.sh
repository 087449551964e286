#!/usr/bin/env bash
# Google's ADK: an agent that may ask its model five times, with another agent as its tool (AgentTool) that reads on for ever.
#
# Seen with @google/adk 2.0.0, Node 20.20: with `maxLlmCalls: 5` the model is asked 502 times. The limit of the run is not the helper's, which has
# 500 requests of its own. Where it meets those the run goes on: the result of the helper is an empty text, no event has an error, and
# nothing says that a limit was met. The same helper as a sub-agent, to which the agent transfers, is held by the limit: five
# requests, and an error.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @google/adk@2.0.0 zod@4.6.7
cat >run.mjs <<'JS'
import { AgentTool, FunctionTool, InMemoryRunner, LlmAgent, LogLevel, setLogLevel } from '@google/adk'
import { z } from 'zod'
import { serveGemini, verdict } from './server.mjs'

setLogLevel(LogLevel.ERROR)
process.env.GEMINI_API_KEY = 'k'
const has = ({ parts }, kind) => parts.some((part) => part[kind])

/** Runs the agent, which asks its helper a number of times; says how often a model was asked, and what the run shows of it. */
async function run(questions, isTool) {
  const name = isTool ? 'helper' : 'transfer_to_agent'
  const { url, bodies } = await serveGemini(({ systemInstruction, contents }, number) => {
    if (!JSON.stringify(systemInstruction).includes('You ask.'))
      return { calls: [{ name: 'read', args: { page: number } }] }
    if (contents.filter((content) => has(content, 'functionResponse')).length === questions)
      return { text: 'I found nothing.' }
    return { calls: [{ name, args: isTool ? { request: 'Which city?' } : { agentName: 'helper' } }] }
  })
  process.env.GOOGLE_GEMINI_BASE_URL = url
  const model = 'gemini-2.5-flash'
  const read = new FunctionTool({
    name: 'read',
    description: 'Reads a page',
    parameters: z.object({ page: z.number() }),
    execute: ({ page }) => ({ text: `Page ${page}` }),
  })
  const helper = new LlmAgent({
    name: 'helper',
    model,
    description: 'Finds things',
    instruction: 'You find.',
    tools: [read],
  })
  const more = isTool ? { tools: [new AgentTool({ agent: helper })] } : { subAgents: [helper] }
  const runner = new InMemoryRunner({
    agent: new LlmAgent({ name: 'a', model, instruction: 'You ask.', ...more }),
    appName: 'app',
  })
  const { id: sessionId } = await runner.sessionService.createSession({ appName: 'app', userId: 'u' })
  const newMessage = { role: 'user', parts: [{ text: 'Which city?' }] }
  const events = []
  let error
  try {
    const runConfig = { maxLlmCalls: 5 }
    for await (const event of runner.runAsync({ userId: 'u', sessionId, newMessage, runConfig })) events.push(event)
  } catch ({ message }) {
    error = message
  }
  const results = events
    .flatMap(({ content }) => content?.parts ?? [])
    .flatMap(({ functionResponse }) => functionResponse ?? [])
  return {
    requests: bodies.length,
    resultsOfTheHelper: results.filter(({ name }) => name === 'helper').map(({ response }) => response),
    errors: [...events.flatMap(({ errorMessage }) => errorMessage ?? []), ...(error ? [error] : [])],
    answer: events.at(-1).content?.parts.at(-1).text ?? null,
  }
}

verdict(
  { 'one question': await run(1, true), 'as a sub-agent': await run(1, false) },
  {
    'one question': { requests: 502, resultsOfTheHelper: [{ result: '' }], errors: [], answer: 'I found nothing.' },
    'as a sub-agent': {
      requests: 5,
      resultsOfTheHelper: [],
      errors: ['Max number of llm calls limit of 5 exceeded'],
      answer: null,
    },
  },
)
process.exit()
JS
node run.mjs
