#!/usr/bin/env bash
# Agents behind a server that numbers the calls of each answer anew, as Kimi K3 does at Fireworks (`read:0` in every step), and a model that reads
# the first of five pages whose text is not in its request.
#
# Seen with @openai/agents 0.14.3 and 0.20.0, @mastra/core 1.71.0, ai 7.0.173, Node 20.20:
#   Mastra, Agents 0.14   hold one call and one result, so that it reads pages 1 and 2 in turns for as long as it is let; after two pages
#                         Mastra sends the call of page 1 with the text of page 2
#   Agents 0.20           ends with an error at the second call, which is not executed
#   ai                    reads five pages and answers
# Every call is executed, and no run but that of Agents 0.20 has an error or a warning.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error --legacy-peer-deps @openai/agents@0.20.0 agents14@npm:@openai/agents@0.14.3 openai@6.49.0 \
  @mastra/core@1.71.0 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 zod@4.6.7
cat >run.mjs <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Agent as MastraAgent } from '@mastra/core/agent'
import { createTool } from '@mastra/core/tools'
import * as agents20 from '@openai/agents'
import * as agents14 from 'agents14'
import { isStepCount, streamText, tool } from 'ai'
import OpenAI from 'openai'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const prompt = 'Which city?'
const description = 'Reads a page'
const inputSchema = z.object({ page: z.number() })
const textOf = ({ page }) => `The text of page ${page}.`

/** The model: reads the first page whose text is not in the request, and gives up at the 30th request. */
function model({ messages }, number) {
  const got = JSON.stringify(messages)
  const page = [1, 2, 3, 4, 5].find((page) => !got.includes(textOf({ page })))
  if (!page) return { text: 'Oslo.' }
  return number === 30 ? { text: 'I give up.' } : { calls: [{ id: 'read:0', name: 'read', arguments: { page } }] }
}

async function withAgents({ Agent, OpenAIChatCompletionsModel, Runner, tool }, baseURL, execute) {
  const tools = [tool({ name: 'read', description, parameters: inputSchema, execute })]
  const chat = new OpenAIChatCompletionsModel(new OpenAI({ apiKey: 'k', baseURL }), 'm')
  const runner = new Runner({ tracingDisabled: true })
  return (await runner.run(new Agent({ name: 'a', model: chat, tools }), prompt, { maxTurns: 50 })).finalOutput
}
const runs = {
  'OpenAI Agents 0.14': (...given) => withAgents(agents14, ...given),
  'OpenAI Agents 0.20': (...given) => withAgents(agents20, ...given),
  async Mastra(url, execute) {
    const read = createTool({ id: 'read', description, inputSchema, execute: async (given) => execute(given) })
    const model = { id: 'openai/m', url, apiKey: 'k' }
    const agent = new MastraAgent({ id: 'a', name: 'a', instructions: 'Read.', model, tools: { read } })
    return (await agent.generate(prompt, { maxSteps: 50 })).text
  },
  ai(baseURL, execute) {
    const model = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL })('m')
    const tools = { read: tool({ description, inputSchema, execute }) }
    return streamText({ model, prompt, tools, stopWhen: isStepCount(50) }).text
  },
}

const seen = {}
for (const [name, run] of Object.entries(runs)) {
  const pages = []
  const { url, bodies } = await serve(model)
  const end = await run(url, (given) => {
    pages.push(given.page)
    return textOf(given)
  }).catch(({ message }) => message)
  const { messages } = bodies[2] ?? bodies.at(-1)
  const calls = messages.flatMap(({ tool_calls: calls = [] }) => calls)
  const results = messages.filter(({ role }) => role === 'tool')
  seen[name] = {
    pages: pages.join(' '),
    'calls in the third request': calls.map((call) => JSON.parse(call.function.arguments).page).join(' '),
    'their results': results.map(({ content }) => /page \d/.exec(JSON.stringify(content))[0]).join(', '),
    end,
  }
}
const inTurns = Array.from({ length: 29 }, (_, index) => 1 + (index % 2)).join(' ')
const runOf = (pages, calls, results, end) => ({
  pages,
  'calls in the third request': calls,
  'their results': results,
  end,
})
verdict(seen, {
  'OpenAI Agents 0.14': runOf(inTurns, '2', 'page 2', 'I give up.'),
  'OpenAI Agents 0.20': runOf(
    '1',
    '1',
    'page 1',
    'Tool call ID read:0 was reused for a different invocation after its output was committed.',
  ),
  Mastra: runOf(inTurns, '1', 'page 2', 'I give up.'),
  ai: runOf('1 2 3 4 5', '1 2', 'page 1, page 2', 'Oslo.'),
})
process.exit()
JS
node run.mjs
