#!/usr/bin/env bash
# Google's ADK: TokenBasedContextCompactor, told to keep the last 6 events, in a run of 300 steps that each read a page.
#
# Seen with @google/adk 2.0.0, Node 20.20, in six runs: of 63 to 65 compactions 38 to 46 kept two steps where 6 events are three, and the page of the
# third was neither given to the summarizer nor sent again. So one page in seven is lost. After a compaction those events count that are
# younger than the last one that was summed up, by the millisecond; each lost call bears the very millisecond of the result before it, as
# a call bears the time at which its step began.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @google/adk@2.0.0 zod@4.6.7
cat >run.mjs <<'JS'
import {
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
const pagesIn = (value) => JSON.stringify(value).match(/(?<=This is page )\d+/g) ?? []
const text = 'A word. '.repeat(200)
let asked = 0
const { url, bodies } = await serveGemini(({ systemInstruction }) => {
  if (!systemInstruction) return { text: 'The summary.' }
  return asked === 300 ? { text: 'Oslo.' } : { calls: [{ name: 'read', args: { page: ++asked } }] }
})
process.env.GOOGLE_GEMINI_BASE_URL = url

/** The package's summarizer, which also notes the pages that it was given, and the request that follows. */
const compactions = []
class Noting extends LlmSummarizer {
  async summarize(events) {
    const compacted = await super.summarize(events)
    compactions.push({ given: pagesIn(events), next: bodies.length, endTime: compacted.endTime })
    return compacted
  }
}
const model = new Gemini({ model: 'gemini-2.5-flash', apiKey: 'k' })
const compactor = new TokenBasedContextCompactor({
  tokenThreshold: 2500,
  eventRetentionSize: 6,
  summarizer: new Noting({ llm: model }),
})
const read = new FunctionTool({
  name: 'read',
  description: 'Reads a page',
  parameters: z.object({ page: z.number() }),
  execute: ({ page }) => ({ text: `This is page ${page}. ${text}` }),
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

// The pages that the next request has after a compaction, and those of the request before that neither it nor the summarizer was given.
const kept = compactions.map(({ next }) => pagesIn(bodies[next]).length)
const lost = compactions.flatMap(({ given, next, endTime }) => {
  const known = new Set([...given, ...bodies.slice(next).flatMap(pagesIn)])
  return pagesIn(bodies[next - 2])
    .filter((page) => !known.has(page))
    .map((page) => ({ page, endTime }))
})
const { events } = await runner.sessionService.getSession({ appName: 'app', userId: 'u', sessionId })
const calledAt = (page) =>
  events.find(({ content }) => content?.parts?.some(({ functionCall }) => functionCall?.args.page === Number(page)))
    .timestamp
process.stdout.write(
  `${compactions.length} compactions; pages kept after each: ${kept.join(' ')}; pages lost: ${lost.map(({ page }) => page).join(' ')}\n`,
)
verdict(
  {
    everyPageRead: asked === 300,
    keepsThreeSometimes: kept.includes(3),
    losesPages: lost.length > 0,
    allOfThemCalledInTheMillisecondThatTheSummaryEnds: lost.every(({ page, endTime }) => calledAt(page) === endTime),
  },
  {
    everyPageRead: true,
    keepsThreeSometimes: true,
    losesPages: true,
    allOfThemCalledInTheMillisecondThatTheSummaryEnds: true,
  },
)
process.exit()
JS
node run.mjs
