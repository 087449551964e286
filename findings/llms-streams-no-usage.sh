#!/usr/bin/env bash
# A server that gives Claude Code models of another API says that a streamed answer took no tokens at all.
#
# Seen with @musistudio/llms 1.0.53 (Messages on its own side, Chat Completions on the provider's), Node 20.20, for the same answer:
#             the provider states        the client reads
#   whole     1500 in, 1000 cached, 7    500 in, 1000 cached, 7
#   streamed  the same, in a last chunk  0 in, 0 cached, 0
# The provider sends its usage as OpenAI does, in a chunk after the one with the finish reason. The server has written the end of the
# message by then. It also does not ask for it (`stream_options`). Claude Code streams always, and looks at these numbers to know when its
# context is full. The package's entry for `import` can't be loaded (it calls `require`): only `require` works.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @musistudio/llms@1.0.53
cat >run.mjs <<'JS'
import { createRequire } from 'node:module'
import { freePort, serve, verdict } from './server.mjs'

const prompt_tokens_details = { cached_tokens: 1000 }
const usage = { prompt_tokens: 1500, prompt_tokens_details, completion_tokens: 7, total_tokens: 1507 }
const { url, bodies } = await serve(() => ({ text: 'It is Oslo.', usage }))
const { default: Server } = createRequire(import.meta.url)('@musistudio/llms')
const provider = { name: 'o', api_base_url: `${url}/chat/completions`, api_key: 'k', models: ['gpt-4o'] }
const PORT = await freePort()
const server = new Server({ logger: false, initialConfig: { providers: [provider], HOST: '127.0.0.1', PORT, LOG: false } })
await server.start()
const ask = async (stream) => {
  const body = { model: 'o,gpt-4o', max_tokens: 50, stream, messages: [{ role: 'user', content: 'Which city?' }] }
  const headers = { 'content-type': 'application/json', 'anthropic-version': '2023-06-01' }
  const reply = await fetch(`http://127.0.0.1:${PORT}/v1/messages`, { method: 'POST', headers, body: JSON.stringify(body) })
  return reply.text()
}
const numbers = ({ input_tokens, cache_read_input_tokens, output_tokens }) => [
  input_tokens,
  cache_read_input_tokens,
  output_tokens,
]
const whole = JSON.parse(await ask(false))
const events = (await ask(true)).split('\n').filter((line) => line.startsWith('data: {'))
const end = events.map((line) => JSON.parse(line.slice(6))).find(({ type }) => type === 'message_delta')
const entry = await import('@musistudio/llms').then(() => 'loads', ({ message }) => message.slice(0, 19))
const asked = bodies.filter(({ stream_options }) => stream_options?.include_usage).length
verdict(
  { whole: numbers(whole.usage), streamed: numbers(end.usage), asked, entry },
  { whole: [500, 1000, 7], streamed: [0, 0, 0], asked: 0, entry: 'Dynamic require of ' },
)
process.exit()
JS
node run.mjs
