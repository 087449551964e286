#!/usr/bin/env bash
# An agent of LlamaIndex that is asked a question of some length, or a short one after a conversation.
#
# Seen with llamaindex 0.12.1, @llamaindex/workflow 1.1.24, @llamaindex/openai 0.4.22, @llamaindex/core 0.6.22, Node 20.20. The agent's memory
# sends the newest messages that fit into 53 % of the context window that it knows of the model, and the question is one of them: if it does
# not fit alone, the request has the system prompt and no question, in the run's later steps neither. The model answers that, and nothing
# says so. With gpt-4o a question of 68,000 tokens is lost so. A model that is not in the package's list, as gpt-5.1 or most that a
# gateway names, has a window of 1,024 tokens there: a question of 600 words is not sent, and of a conversation of 20 messages of 50 words
# the last 10 are.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error llamaindex@0.12.1 @llamaindex/workflow@1.1.24 @llamaindex/openai@0.4.22 \
  @llamaindex/core@0.6.22 zod@3.25.76
cat >run.mjs <<'JS'
import { OpenAI } from '@llamaindex/openai'
import { agent } from '@llamaindex/workflow'
import { createMemory, tool } from 'llamaindex'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const words = (count) => 'word '.repeat(count)

/** Asks an agent that reads a page before it answers; says what its two requests have, by role. */
async function ask(model, question, chatHistory) {
  const { url, bodies } = await serve((_, number) =>
    number === 1 ? { calls: [{ name: 'read', arguments: { page: 1 } }] } : { text: 'Oslo.' },
  )
  const read = tool({
    name: 'read',
    description: 'Reads a page',
    parameters: z.object({ page: z.number() }),
    execute: ({ page }) => `Page ${page}`,
  })
  const llm = new OpenAI({ model, apiKey: 'k', baseURL: url })
  const asked = agent({ llm, tools: [read], systemPrompt: 'You help.', memory: createMemory({}) })
  const { data } = await asked.run(question, { chatHistory })
  const roles = ({ messages }) => messages.map(({ role }) => role).join(', ')
  return { first: roles(bodies[0]), second: roles(bodies[1]), result: data.result }
}

const history = Array.from({ length: 20 }, (_, index) => ({
  role: index % 2 ? 'assistant' : 'user',
  content: words(50),
}))
const later = await ask('gpt-5.1', 'Which city?', history)
verdict(
  {
    'gpt-4o, 67,000 words': await ask('gpt-4o', words(67_000)),
    'gpt-4o, 68,000 words': await ask('gpt-4o', words(68_000)),
    'gpt-5, 600 words': await ask('gpt-5', words(600)),
    'gpt-5.1, 600 words': await ask('gpt-5.1', words(600)),
    'qwen3-coder, 600 words': await ask('qwen3-coder', words(600)),
    'gpt-5.1, messages of 20 and a question that are sent': later.first.split(', ').length - 1,
  },
  {
    'gpt-4o, 67,000 words': { first: 'system, user', second: 'system, user, assistant, tool', result: 'Oslo.' },
    'gpt-4o, 68,000 words': { first: 'system', second: 'system, assistant, tool', result: 'Oslo.' },
    'gpt-5, 600 words': { first: 'system, user', second: 'system, user, assistant, tool', result: 'Oslo.' },
    'gpt-5.1, 600 words': { first: 'system', second: 'system, assistant, tool', result: 'Oslo.' },
    'qwen3-coder, 600 words': { first: 'system', second: 'system, assistant, tool', result: 'Oslo.' },
    'gpt-5.1, messages of 20 and a question that are sent': 11,
  },
)
process.exit()
JS
node run.mjs
