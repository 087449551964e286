#!/usr/bin/env bash
# The tool runner of Anthropic's SDK behind a server that speaks Messages and leaves fields that it does not know aside, as Ollama and vLLM do.
#
# Seen with @anthropic-ai/sdk 1.14.0 and 0.137.0, Node 20.20: the runner of 1.14 keeps its history in a thread at the provider. From the
# second request on it sends the last results alone: no question, no system prompt, no tools, no earlier step. A server that knows no threads
# answers that with 200, the runner does not look whether there is a thread, and the run ends as `end_turn` with whatever a model says to
# the text of a page that it knows nothing of. `create` and `stream` of the same version send the whole history; so does the runner with
# `thread: false`, and that of 0.137.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @anthropic-ai/sdk@1.14.0 sdk0@npm:@anthropic-ai/sdk@0.137.0
cat >run.mjs <<'JS'
import Anthropic from '@anthropic-ai/sdk'
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema'
import Anthropic0 from 'sdk0'
import { betaTool as betaTool0 } from 'sdk0/helpers/beta/json-schema'
import { serveMessages, verdict } from './server.mjs'

/** The model: reads three pages and answers; it asks back where no question is in the request. */
function model({ messages }, number) {
  const usage = { input_tokens: 1000, output_tokens: 7 }
  if (!JSON.stringify(messages).includes('Which city?'))
    return { text: 'What would you like to know about this page?', stop_reason: 'end_turn', usage }
  if (number > 3) return { text: 'Oslo.', stop_reason: 'end_turn', usage }
  return { calls: [{ name: 'read', input: { page: number } }], stop_reason: 'tool_use', usage }
}

async function run(Client, toolOf, more) {
  const { url, bodies } = await serveMessages(model)
  const read = toolOf({
    name: 'read',
    description: 'Reads a page',
    inputSchema: { type: 'object', properties: { page: { type: 'number' } } },
    run: ({ page }) => `Page ${page}`,
  })
  const { content, stop_reason: reason } = await new Client({
    apiKey: 'k',
    baseURL: url.replace('/v1', ''),
  }).beta.messages.toolRunner({
    model: 'gpt-oss:20b',
    max_tokens: 1000,
    system: 'You find cities.',
    messages: [{ role: 'user', content: 'Which city?' }],
    tools: [read],
    ...more,
  })
  const { system, tools, messages } = bodies[1]
  return {
    requests: bodies.length,
    'second request': `${messages.length} messages, ${tools?.length ?? 0} tools, system prompt: ${Boolean(system)}`,
    end: `${reason}: ${content[0].text}`,
  }
}

const whole = {
  requests: 4,
  'second request': '3 messages, 1 tools, system prompt: true',
  end: 'end_turn: Oslo.',
}
verdict(
  {
    '1.14': await run(Anthropic, betaTool),
    '1.14, thread: false': await run(Anthropic, betaTool, { thread: false }),
    '0.137': await run(Anthropic0, betaTool0),
  },
  {
    '1.14': {
      requests: 2,
      'second request': '1 messages, 0 tools, system prompt: false',
      end: 'end_turn: What would you like to know about this page?',
    },
    '1.14, thread: false': whole,
    '0.137': whole,
  },
)
JS
node run.mjs
