#!/usr/bin/env bash
# Genkit over Chat Completions, with a model that says something, and thinks, before each of its calls.
#
# Seen with genkit 1.42.0 and @genkit-ai/compat-oai 1.42.0 beside ai 7.0.173, Node 20.20: an answer with a call is kept as the call alone. What was said
# and thought is shown to whoever reads the stream, and is then nowhere: not in the `messages` of the response, nor in the next request. So a
# model that notes down beside its calls what it has found does not have its notes at the next step. ai sends both back.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error genkit@1.42.0 @genkit-ai/compat-oai@1.42.0 ai@7.0.173 @ai-sdk/openai-compatible@3.0.92
cat >run.mjs <<'JS'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { openAICompatible } from '@genkit-ai/compat-oai'
import { isStepCount, streamText, tool } from 'ai'
import { genkit, z } from 'genkit'
import { serve, verdict } from './server.mjs'

/** The model: reads two pages, thinks and says something before each call, and answers. */
function model({ stream }, number) {
  if (number > 2) return { text: 'Oslo.' }
  const text = `Page ${number} is next.`
  if (!stream) return { text, calls: [{ name: 'read', arguments: { page: number } }] }
  const call = {
    index: 0,
    id: `call_${number}`,
    type: 'function',
    function: { name: 'read', arguments: `{"page":${number}}` },
  }
  const thought = { role: 'assistant', reasoning_content: `I think of page ${number}.` }
  return { deltas: [thought, { content: text }, { tool_calls: [call] }], finish: 'tool_calls' }
}

const prompt = 'Which city?'
const inputSchema = z.object({ page: z.number() })
const of = (text) => text.match(/I think of page \d\.|Page \d is next\./g) ?? []

async function withGenkit(streams) {
  const { url, bodies } = await serve(model)
  const ai = genkit({ plugins: [openAICompatible({ name: 'local', apiKey: 'k', baseURL: url })] })
  const tools = [ai.defineTool({ name: 'read', description: 'Reads', inputSchema }, async () => 'Text')]
  const options = { model: 'local/m', prompt, tools }
  const { stream, response } = streams ? ai.generateStream(options) : { stream: [], response: ai.generate(options) }
  let shown = ''
  for await (const { content } of stream) shown += JSON.stringify(content)
  const { messages } = await response
  return { shown: of(shown), kept: of(JSON.stringify(messages)), sentBack: of(JSON.stringify(bodies.at(-1))) }
}

async function withAi() {
  const { url, bodies } = await serve(model)
  const local = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL: url })('m')
  const read = tool({ description: 'Reads', inputSchema, execute: async () => 'Text' })
  const run = streamText({ model: local, prompt, tools: { read }, stopWhen: isStepCount(5) })
  let shown = ''
  for await (const { text = '' } of run.stream) shown += text
  return { shown: of(shown), sentBack: of(JSON.stringify(bodies.at(-1))) }
}

verdict(
  { 'genkit, streamed': await withGenkit(true), 'genkit, whole': await withGenkit(false), ai: await withAi() },
  {
    'genkit, streamed': {
      shown: ['I think of page 1.', 'Page 1 is next.', 'I think of page 2.', 'Page 2 is next.'],
      kept: [],
      sentBack: [],
    },
    'genkit, whole': { shown: [], kept: [], sentBack: [] },
    ai: {
      shown: ['I think of page 1.', 'Page 1 is next.', 'I think of page 2.', 'Page 2 is next.'],
      sentBack: ['Page 1 is next.', 'I think of page 1.', 'Page 2 is next.', 'I think of page 2.'],
    },
  },
)
process.exit()
JS
node run.mjs
