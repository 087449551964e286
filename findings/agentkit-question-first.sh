#!/usr/bin/env bash
# An AgentKit network that is run twice, the second time with the state of the first, as a chat does.
#
# Seen with @inngest/agent-kit 0.13.2: the first question is not kept. The second one stands before the call, the result and the answer of the
# first run, and the request ends in that answer: over Chat Completions as the assistant's, over Messages as words of the user.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "@inngest/agent-kit@0.13.2" "inngest@4.24.0" "zod@4"
cat >run.mjs <<'JS'
import { anthropic, createAgent, createNetwork, createTool, openai } from '@inngest/agent-kit'
import { z } from 'zod'
import { serve, serveMessages, verdict } from './server.mjs'

const search = createTool({
  name: 'search',
  description: 'Search',
  parameters: z.object({ query: z.string() }),
  handler: async () => 'Wren',
})

async function askTwice(model, tools) {
  const agent = createAgent({ name: 'a', system: 'Be short.', model, tools })
  const router = ({ lastResult, callCount }) => (callCount === 0 || lastResult?.toolCalls.length ? agent : undefined)
  const network = createNetwork({ name: 'n', agents: [agent], maxIter: 10, router })
  const { state } = await network.run('Who built it?')
  await network.run('And when?', { state })
}

const said = ({ role, content, tool_calls }) => [role, tool_calls ? 'a call' : content]

const chat = await serve((_, number) =>
  number === 1 ? { calls: [{ name: 'search', arguments: { query: 'it' } }] } : { text: 'It was Wren.' },
)
await askTwice(openai({ model: 'gpt-4o', apiKey: 'k', baseUrl: `${chat.url}/` }), [search])

const seen = []
const usage = { input_tokens: 1, output_tokens: 1 }
const messages = await serveMessages((body) => {
  seen.push(body)
  return { text: 'It was Wren.', stop_reason: 'end_turn', usage }
})
const defaultParameters = { max_tokens: 100 }
await askTwice(anthropic({ model: 'claude-sonnet-4-5', apiKey: 'k', baseUrl: `${messages.url}/`, defaultParameters }), [])

verdict(
  { chat: chat.bodies.at(-1).messages.map(said), messages: seen.at(-1).messages.map(said) },
  {
    chat: [
      ['system', 'Be short.'],
      ['user', 'And when?'],
      ['assistant', 'a call'],
      ['tool', '{"data":"Wren"}'],
      ['assistant', 'It was Wren.'],
    ],
    messages: [
      ['user', 'And when?'],
      ['user', 'It was Wren.'],
    ],
  },
)
process.exit()
JS
node run.mjs
