#!/usr/bin/env bash
# Google's ADK: an agent with another agent as its tool (AgentTool), which it asks ten times for something that a page of 4,000 characters says.
#
# Seen with @google/adk 2.0.0 beside @openai/agents 0.20.0, Node 20.20: the tool keeps a session of its own under the id of the agent's, so that
# the helper is sent every question that it was asked before in the conversation, what it read and what it said. The request for the tenth
# answer has ten questions and ten pages, and the page, which each answer needs once, is sent 100 times. An agent of OpenAI Agents as
# a tool begins anew with each call: one question and one page, ten times in all.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @google/adk@2.0.0 @openai/agents@0.20.0 openai@7.59.0 zod@4.6.7
cat >run.mjs <<'JS'
import { AgentTool, FunctionTool, InMemoryRunner, LlmAgent, LogLevel, setLogLevel } from '@google/adk'
import { Agent, OpenAIChatCompletionsModel, Runner, tool } from '@openai/agents'
import OpenAI from 'openai'
import { z } from 'zod'
import { serve, serveGemini, verdict } from './server.mjs'

setLogLevel(LogLevel.ERROR)
process.env.GEMINI_API_KEY = 'k'
const parameters = z.object({ page: z.number() })
const text = 'A word. '.repeat(500)

async function adk() {
  const has = ({ parts }, kind) => parts.some((part) => part[kind])
  const { url, bodies } = await serveGemini(({ systemInstruction, contents }, number) => {
    const isResult = has(contents.at(-1), 'functionResponse')
    if (!JSON.stringify(systemInstruction).includes('You ask.'))
      return isResult ? { text: 'Oslo.' } : { calls: [{ name: 'read', args: { page: number } }] }
    const asked = contents.filter((content) => has(content, 'functionResponse')).length
    return asked % 10 === 0 && isResult
      ? { text: 'Oslo.' }
      : { calls: [{ name: 'helper', args: { request: `Question ${asked + 1}` } }] }
  })
  process.env.GOOGLE_GEMINI_BASE_URL = url
  const model = 'gemini-2.5-flash'
  const read = new FunctionTool({ name: 'read', description: 'Reads a page', parameters, execute: () => ({ text }) })
  const helper = new LlmAgent({
    name: 'helper',
    model,
    description: 'Finds things',
    instruction: 'You find.',
    tools: [read],
  })
  const agent = new LlmAgent({ name: 'a', model, instruction: 'You ask.', tools: [new AgentTool({ agent: helper })] })
  const runner = new InMemoryRunner({ agent, appName: 'app' })
  const { id: sessionId } = await runner.sessionService.createSession({ appName: 'app', userId: 'u' })
  const newMessage = { role: 'user', parts: [{ text: 'Which city?' }] }
  for await (const _ of runner.runAsync({ userId: 'u', sessionId, newMessage }));
  return bodies
    .filter(({ systemInstruction }) => JSON.stringify(systemInstruction).includes('You find.'))
    .map(({ contents }) => contents)
}

async function openaiAgents() {
  const { url, bodies } = await serve(({ messages }, number) => {
    const isResult = messages.at(-1).role === 'tool'
    if (messages[0].content === 'You find.')
      return isResult ? { text: 'Oslo.' } : { calls: [{ name: 'read', arguments: { page: number } }] }
    const asked = messages.filter(({ role }) => role === 'tool').length
    return asked === 10
      ? { text: 'Oslo.' }
      : { calls: [{ name: 'helper', arguments: { input: `Question ${asked + 1}` } }] }
  })
  const model = new OpenAIChatCompletionsModel(new OpenAI({ apiKey: 'k', baseURL: url }), 'm')
  const read = tool({ name: 'read', description: 'Reads a page', parameters, execute: () => text })
  const helper = new Agent({ name: 'helper', model, instructions: 'You find.', tools: [read] })
  const asTool = helper.asTool({ toolName: 'helper', toolDescription: 'Finds things' })
  const agent = new Agent({ name: 'a', model, instructions: 'You ask.', tools: [asTool] })
  await new Runner({ tracingDisabled: true }).run(agent, 'Which city?', { maxTurns: 20 })
  return bodies.filter(({ messages }) => messages[0].content === 'You find.').map(({ messages }) => messages.slice(1))
}

const seen = {}
for (const [name, run] of Object.entries({ adk, openaiAgents })) {
  const requests = await run()
  const pages = requests.map((messages) => JSON.stringify(messages).split(text).length - 1)
  const questions = requests.map((messages) => JSON.stringify(messages).match(/Question \d+/g).length)
  seen[name] = {
    requestsOfTheHelper: requests.length,
    questionsInItsLast: questions.at(-1),
    pagesInItsLast: pages.at(-1),
    pagesSentInAll: pages.reduce((sum, count) => sum + count),
  }
}
verdict(seen, {
  adk: { requestsOfTheHelper: 20, questionsInItsLast: 10, pagesInItsLast: 10, pagesSentInAll: 100 },
  openaiAgents: { requestsOfTheHelper: 20, questionsInItsLast: 1, pagesInItsLast: 1, pagesSentInAll: 10 },
})
process.exit()
JS
node run.mjs
