#!/usr/bin/env bash
# Google's ADK: an agent whose context is compacted by a summarizer, and a run of 30 steps that each read a page.
#
# Seen with @google/adk 2.0.0, Node 20.20: LlmSummarizer is sent the question, and for each call and each result a line with its number and author
# and nothing below. So a model is paid to sum up empty lines, what it answers takes the place of the older pages, and no page that
# was read is in any summary. Given 8,000 tokens as the threshold, TokenBasedContextCompactor compacts after a request of 8,100 tokens, and
# AnchoredContextCompactor after one of 2,800: it adds up the prompts of the steps, each of which has the ones before in it.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @google/adk@2.0.0 zod@4.6.7
cat >run.mjs <<'JS'
import {
  AnchoredContextCompactor,
  FunctionTool,
  Gemini,
  InMemoryRunner,
  LlmAgent,
  LlmSummarizer,
  LogLevel,
  setLogLevel,
  TokenBasedContextCompactor,
} from '@google/adk'
import { z } from 'zod'
import { serveGemini, verdict } from './server.mjs'

setLogLevel(LogLevel.ERROR)
const pages = 30
const text = 'A word. '.repeat(200)

async function run(Compactor) {
  let page = 0
  const { url, bodies } = await serveGemini(({ systemInstruction }) => {
    if (!systemInstruction) return { text: 'The summary.' }
    return page === pages ? { text: 'Oslo.' } : { calls: [{ name: 'read', args: { page: ++page } }] }
  })
  process.env.GOOGLE_GEMINI_BASE_URL = url
  const model = new Gemini({ model: 'gemini-2.5-flash', apiKey: 'k' })
  const read = new FunctionTool({
    name: 'read',
    description: 'Reads a page',
    parameters: z.object({ page: z.number() }),
    execute: ({ page }) => ({ text: `This is page ${page}. ${text}` }),
  })
  const compactor = new Compactor({
    tokenThreshold: 8000,
    eventRetentionSize: 6,
    summarizer: new LlmSummarizer({ llm: model }),
  })
  const agent = new LlmAgent({
    name: 'a',
    model,
    instruction: 'You find.',
    tools: [read],
    contextCompactors: [compactor],
  })
  const runner = new InMemoryRunner({ agent, appName: 'app' })
  const { id: sessionId } = await runner.sessionService.createSession({ appName: 'app', userId: 'u' })
  const newMessage = { role: 'user', parts: [{ text: 'Which city?' }] }
  for await (const _ of runner.runAsync({ userId: 'u', sessionId, newMessage }));
  const first = bodies.findIndex(({ systemInstruction }) => !systemInstruction)
  const events = bodies[first].contents[0].parts[0].text.split(/\[Event \d+ - Author: \w+\]/).slice(1)
  return {
    tokensOfTheRequestBefore: Math.round(JSON.stringify(bodies[first - 1]).length / 400) * 100,
    eventsToSummarize: events.length,
    textsOfThem: events.map((event) => event.trim()).filter((event) => event),
    summariesThatWereSentAPage: bodies.filter(
      (body) => !body.systemInstruction && JSON.stringify(body).includes('This is page'),
    ).length,
  }
}

const seen = {}
for (const Compactor of [TokenBasedContextCompactor, AnchoredContextCompactor])
  seen[Compactor.name.replace(/^_/, '')] = await run(Compactor)
verdict(seen, {
  TokenBasedContextCompactor: {
    tokensOfTheRequestBefore: 8100,
    eventsToSummarize: 33,
    textsOfThem: ['Which city?'],
    summariesThatWereSentAPage: 0,
  },
  AnchoredContextCompactor: {
    tokensOfTheRequestBefore: 2800,
    eventsToSummarize: 9,
    textsOfThem: ['Which city?'],
    summariesThatWereSentAPage: 0,
  },
})
process.exit()
JS
node run.mjs
