#!/usr/bin/env bash
# The AI SDK's pruneMessages in prepareStep, in a loop whose model says a word before each of two parallel calls.
#
# Seen with ai 6.0.326 and 7.0.173, Node 20.20: `before-last-message` and `before-last-2-messages` send the same bodies, as
# all results of a step are one message, and keep the message with their calls. Two steps are kept from 3 on. What
# the model said before older calls stays, without the calls: a row of assistant messages that announce and do nothing, which
# grows by one with every step. A model that says nothing before its calls has a history of one step for ever.
# So `toolCalls` counts messages and not steps, and bounds the calls and results but not the history.
. "$(dirname "$0")/setup.sh"
for versions in 'ai@6.0.326 @ai-sdk/openai-compatible@2.0.87' 'ai@7.0.173 @ai-sdk/openai-compatible@3.0.92'; do
  name=${versions%% *}
  mkdir "$name" && cp package.json server.mjs "$name"
  # shellcheck disable=SC2086
  (cd "$name" && npm install --no-audit --no-fund --loglevel=error $versions)
  cat >"$name/agent.mjs" <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, jsonSchema, pruneMessages, stepCountIs, tool } from 'ai'
import { serve } from './server.mjs'

/** Returns the roles of the last request's messages; an assistant's with the number of its calls. */
export async function run(toolCalls, text) {
  const call = (page) => ({ name: 'read', arguments: { page } })
  const { url, bodies } = await serve((_, number) =>
    number > 5 ? { text: 'Oslo.' } : { ...(text ? { text } : {}), calls: [call(number), call(-number)] },
  )
  await generateText({
    model: createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL: url })('m'),
    prompt: 'Which city?',
    stopWhen: stepCountIs(9),
    tools: { read: tool({ inputSchema: jsonSchema({ type: 'object' }), execute: async () => 'a page' }) },
    prepareStep: ({ messages }) => ({ messages: pruneMessages({ messages, toolCalls, emptyMessages: 'remove' }) }),
  })
  const roles = bodies.at(-1).messages.map(({ role, tool_calls: calls }) => (calls ? `${role}+${calls.length}` : role))
  return roles.join(' ')
}
JS
done
cat >run.mjs <<'JS'
import { verdict } from './server.mjs'

const seen = {}
const expected = {}
const step = 'assistant+2 tool tool'
const said = (number) => 'assistant '.repeat(number)
for (const name of ['ai@6.0.326', 'ai@7.0.173']) {
  const { run } = await import(`./${name}/agent.mjs`)
  seen[name] = {
    lastMessage: await run('before-last-message', 'I read on.'),
    last2Messages: await run('before-last-2-messages', 'I read on.'),
    last3Messages: await run('before-last-3-messages', 'I read on.'),
    saysNothing: await run('before-last-2-messages'),
  }
  expected[name] = {
    lastMessage: `user ${said(4)}${step}`,
    last2Messages: `user ${said(4)}${step}`,
    last3Messages: `user ${said(3)}${step} ${step}`,
    saysNothing: `user ${step}`,
  }
}
verdict(seen, expected)
JS
node run.mjs
