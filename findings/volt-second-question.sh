#!/usr/bin/env bash
# A VoltAgent agent that is asked a second question in the same conversation.
#
# Seen with @voltagent/core 2.10.0, ai 6.0.326, @ai-sdk/openai-compatible 2.0.87, Node 20.20, with its own memory: the run that
# the second question follows is told otherwise than it was. Calls that were made one after the other, each with the result of the one before,
# become calls of one answer, as if the model had guessed them all at once (a word of the model between two begins another); and each result that
# was text is the JSON of an object around that text, with its quotes and line ends escaped. The system text and the first
# question are all that the request has in common with the last one of that run, so a provider's cache of the prompt serves none of the results.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @voltagent/core@2.10.0 ai@6.0.326 @ai-sdk/openai-compatible@2.0.87 zod@4.6.7
cat >run.mjs <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Agent, createTool } from '@voltagent/core'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const { url, bodies } = await serve((_, number) =>
  number > 4 ? { text: 'Oslo.' } : { calls: [{ name: 'read', arguments: { page: number } }] },
)
const agent = new Agent({
  name: 'a',
  instructions: 'Be short.',
  model: createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL: url })('m'),
  tools: [
    createTool({
      name: 'read',
      description: 'Read',
      parameters: z.object({ page: z.number() }),
      execute: async ({ page }) => `"Page ${page}"\nof a book`,
    }),
  ],
})
const ids = { userId: 'u', conversationId: 'c' }
await agent.generateText('Which city?', ids)
const last = bodies.at(-1).messages
await agent.generateText('And when?', ids)
const next = bodies.at(-1).messages

const roles = (messages) =>
  messages.map(({ role, tool_calls: calls }) => (calls ? `${role}+${calls.length}` : role)).join(' ')
const result = (messages) => messages.find(({ role }) => role === 'tool').content
verdict(
  {
    lastOfTheFirstRun: roles(last),
    secondQuestion: roles(next),
    resultInTheFirstRun: result(last),
    resultAtTheSecondQuestion: result(next),
    equalMessagesAtTheBeginning: next.findIndex(
      (message, index) => JSON.stringify(message) !== JSON.stringify(last[index]),
    ),
  },
  {
    lastOfTheFirstRun: 'system user assistant+1 tool assistant+1 tool assistant+1 tool assistant+1 tool',
    secondQuestion: 'system user assistant+4 tool tool tool tool assistant user',
    resultInTheFirstRun: '"Page 1"\nof a book',
    resultAtTheSecondQuestion: '{"type":"text","value":"\\"Page 1\\"\\nof a book"}',
    equalMessagesAtTheBeginning: 2,
  },
)
process.exit()
JS
# Else it asks another host for a list of models.
NODE_ENV=production node run.mjs
