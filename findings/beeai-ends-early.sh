#!/usr/bin/env bash
# The RequirementAgent of BeeAI, with calls that fail now and then, and with calls that are made twice.
#
# Seen with beeai-framework 0.1.30, @ai-sdk/openai 3.0.141, Node 20.20. `maxRetriesPerStep: 3` is the number of failed calls of the whole run,
# whatever `totalMaxRetries` says: where every fourth page is missing, the run ends at the 16th step, with the fourth of them, as an error that
# says "global retries (3)". With 20 for a step, too, it reads all 24 pages and answers. A call that equals the one before it is not
# executed, and takes every tool but `final_answer` from the model: who looks a second time whether a job is done has to answer then. In an
# answer of eight calls whose last two are equal none of the eight is executed, and the model is asked to answer as if it had called nothing;
# the same eight in another order are all executed, the equal ones too. The caller sees answers.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error --legacy-peer-deps beeai-framework@0.1.30 @ai-sdk/openai@3.0.141 uuid@11.1.1 zod@3.25.76
cat >run.mjs <<'JS'
import { OpenAIChatModel } from 'beeai-framework/adapters/openai/backend/chat'
import { RequirementAgent } from 'beeai-framework/agents/requirement/agent'
import { DynamicTool, StringToolOutput, ToolError } from 'beeai-framework/tools/base'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

console.warn = () => {}
const read = (page) => ({ name: 'read', arguments: { page } })
const final = (response) => ({ calls: [{ name: 'final_answer', arguments: { response } }] })

/** Runs an agent whose model makes the calls of a list, an answer after the other, and then answers. */
async function run(answers, execution, isMissing = () => false) {
  const { url, bodies } = await serve(({ tools }, number) => {
    if (tools.length === 1) return final('I have to guess.')
    return answers[number - 1] ? { calls: answers[number - 1].map(read) } : final('Oslo.')
  })
  let executed = 0
  const tool = new DynamicTool({
    name: 'read',
    description: 'Reads a page',
    inputSchema: z.object({ page: z.number() }),
    async handler({ page }) {
      executed++
      if (isMissing(page)) throw new ToolError('No such page')
      return new StringToolOutput(`Page ${page}`)
    },
  })
  const agent = new RequirementAgent({
    llm: new OpenAIChatModel('m', {}, { apiKey: 'k', baseURL: url }),
    tools: [tool],
  })
  const end = await agent.run({ prompt: 'Which city?' }, { execution: { maxIterations: 50, ...execution } }).then(
    ({ result }) => result.text,
    ({ message }) => message,
  )
  const calls = bodies.at(-1).messages.reduce((sum, { tool_calls: all = [] }) => sum + all.length, 0)
  return { requests: bodies.length, executed, callsInTheLastRequest: calls, end }
}

const pages = Array.from({ length: 24 }, (_, index) => [index + 1])
const everyFourth = (page) => page % 4 === 0
const retries = { totalMaxRetries: 20 }
verdict(
  {
    'every fourth page is missing': await run(pages, { ...retries, maxRetriesPerStep: 3 }, everyFourth),
    'the same, 20 retries for a step': await run(pages, { ...retries, maxRetriesPerStep: 20 }, everyFourth),
    'the same page a second time': await run([[1], [1], [1]]),
    'eight pages, 7 twice': await run([[1, 2, 3, 4, 5, 6, 7, 7]]),
    'eight pages, 7 first and last': await run([[7, 1, 2, 3, 4, 5, 6, 7]]),
  },
  {
    'every fourth page is missing': {
      requests: 16,
      executed: 16,
      callsInTheLastRequest: 15,
      end: 'Maximal amount of global retries (3) has been reached.',
    },
    'the same, 20 retries for a step': { requests: 25, executed: 24, callsInTheLastRequest: 24, end: 'Oslo.' },
    'the same page a second time': { requests: 3, executed: 1, callsInTheLastRequest: 1, end: 'I have to guess.' },
    'eight pages, 7 twice': { requests: 2, executed: 0, callsInTheLastRequest: 0, end: 'I have to guess.' },
    'eight pages, 7 first and last': { requests: 2, executed: 8, callsInTheLastRequest: 8, end: 'Oslo.' },
  },
)
process.exit()
JS
node run.mjs
