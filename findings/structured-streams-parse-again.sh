#!/usr/bin/env bash
# A streamed structured output, and a streamed call of a tool that is `strict`, of 100,000 characters in pieces of 12: a file that a model writes.
#
# Seen with openai 6.49.0 and 7.59.0, ai 7.0.173, @ai-sdk/openai-compatible 3.0.92, Node 20.20; seconds of computing, in which the process does nothing else:
#   characters                              50,000    100,000    200,000
#   openai 6, a tool                        0.1       0.2        0.3
#   openai 6, the same tool, strict         0.4       1.5        7.2
#   openai 7, strict                        0.1       0.2        0.3
#   ai, a text or a tool                    0.3       0.4        0.8
#   ai, `output: Output.object(…)`          1.0       3.8        19.7
# Two of them read all that has come again with each piece, though nobody asks for a part of it: the caller awaits the end. `strict: true`,
# which is said to the provider, decides that in openai 6. What is compared below is how many times as much it takes at 100,000.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error openai@7.59.0 openai6@npm:openai@6.49.0 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92
cat >run.mjs <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { jsonSchema, Output, streamText, tool } from 'ai'
import OpenAI7 from 'openai'
import OpenAI6 from 'openai6'
import { serve, verdict } from './server.mjs'

const written = JSON.stringify({ text: 'A line of a long file. '.repeat(100_000 / 23) })
const pieces = written.match(/.{1,12}/gs)
const call = (more) => ({ tool_calls: [{ index: 0, ...more }] })
const { url } = await serve(({ tools }) => ({
  deltas: tools
    ? [
        { role: 'assistant' },
        call({ id: 'call_1', type: 'function', function: { name: 'write', arguments: '' } }),
        ...pieces.map((piece) => call({ function: { arguments: piece } })),
      ]
    : pieces.map((content) => ({ content })),
  finish: tools ? 'tool_calls' : 'stop',
}))

const schema = {
  type: 'object',
  properties: { text: { type: 'string' } },
  required: ['text'],
  additionalProperties: false,
}
const prompt = 'Write a long file.'
const openai = (OpenAI, strict) => async () => {
  const tools = [{ type: 'function', function: { name: 'write', parameters: schema, strict } }]
  const request = { model: 'm', messages: [{ role: 'user', content: prompt }], tools }
  const stream = new OpenAI({ apiKey: 'k', baseURL: url }).chat.completions.stream(request)
  return (await stream.finalMessage()).tool_calls[0].function.arguments
}
const model = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL: url, supportsStructuredOutputs: true })('m')
const runs = {
  'openai 6, tool': openai(OpenAI6, false),
  'openai 6, strict tool': openai(OpenAI6, true),
  'openai 7, strict tool': openai(OpenAI7, true),
  'ai, text': async () => streamText({ model, prompt }).text,
  'ai, tool': async () => {
    const tools = { write: tool({ inputSchema: jsonSchema(schema) }) }
    return JSON.stringify((await streamText({ model, prompt, tools }).toolCalls)[0].input)
  },
  'ai, output': async () =>
    JSON.stringify(await streamText({ model, prompt, output: Output.object({ schema: jsonSchema(schema) }) }).output),
}

const seconds = {}
for (const [name, run] of Object.entries(runs)) {
  await run()
  const before = process.cpuUsage()
  if ((await run()) !== written) throw new Error(`${name}: another answer`)
  const { user, system } = process.cpuUsage(before)
  seconds[name] = (user + system) / 1e6
}
process.stdout.write(`${JSON.stringify(seconds)}\n`)
const times = (name, base) => (seconds[name] > 4 * seconds[base] ? 'more than 4 times' : 'about as much')
verdict(
  {
    'openai 6, strict': times('openai 6, strict tool', 'openai 6, tool'),
    'openai 7, strict': times('openai 7, strict tool', 'openai 6, tool'),
    'ai, a tool': times('ai, tool', 'ai, text'),
    'ai, output': times('ai, output', 'ai, text'),
  },
  {
    'openai 6, strict': 'more than 4 times',
    'openai 7, strict': 'about as much',
    'ai, a tool': 'about as much',
    'ai, output': 'more than 4 times',
  },
)
JS
node run.mjs
