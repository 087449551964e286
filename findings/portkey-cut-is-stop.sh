#!/usr/bin/env bash
# A gateway that speaks Chat Completions for Anthropic's models says `stop` for three ends that are no answer.
#
# Seen with @portkey-ai/gateway 1.15.2, Node 20.20, for a whole answer of `/v1/messages`:
#   stop_reason                      finish_reason
#   max_tokens                       length
#   model_context_window_exceeded    stop    the answer was cut in the middle, as by max_tokens
#   refusal                          stop    `content_filter` is what an OpenAI client looks for
#   pause_turn                       stop    the model waits to be asked again, and has not answered
# An agent that looks at finish_reason takes a cut text, a refusal and a pause for a finished answer. Beside it, `usage` does not add up:
# prompt_tokens leaves cached tokens out, and total_tokens has them (10 + 7 of 1517).
. "$(dirname "$0")/setup.sh"
mkdir newest
cat >newest/package.json <<'JSON'
{"private": true, "type": "module", "overrides": {"@hono/node-server": "1.14.0", "hono": "4.13.19"}}
JSON
(cd newest && npm install --no-audit --no-fund --loglevel=error @portkey-ai/gateway@1.15.2)
cat >run.mjs <<'JS'
import { serveMessages, startPortkey, verdict } from './server.mjs'

const usage = { input_tokens: 10, cache_read_input_tokens: 1000, cache_creation_input_tokens: 500, output_tokens: 7 }
const { url } = await serveMessages(({ messages }) => ({ text: 'It is Oslo, as', stop_reason: messages[0].content, usage }))
const gateway = await startPortkey('newest')
const seen = {}
for (const reason of ['end_turn', 'max_tokens', 'model_context_window_exceeded', 'refusal', 'pause_turn']) {
  const request = { model: 'claude-sonnet-4-5', max_tokens: 50, messages: [{ role: 'user', content: reason }] }
  const reply = await gateway.ask({ 'x-portkey-provider': 'anthropic', 'x-portkey-custom-host': url }, request)
  const { choices, usage: told } = await reply.json()
  seen[reason] = choices[0].finish_reason
  seen.tokens = [told.prompt_tokens, told.completion_tokens, told.total_tokens]
}
gateway.end()
verdict(seen, {
  end_turn: 'stop',
  tokens: [10, 7, 1517],
  max_tokens: 'length',
  model_context_window_exceeded: 'stop',
  refusal: 'stop',
  pause_turn: 'stop',
})
JS
node run.mjs
