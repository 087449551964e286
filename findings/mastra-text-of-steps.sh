#!/usr/bin/env bash
# Mastra's Agent, asked by `generate` and by `stream`, with a model that says something beside its tool calls.
#
# Seen with @mastra/core 1.71.0, Node 20.20 and 24.21: `text` of `generate` is what the model said in all steps, joined with nothing between;
# `text` of `stream` is the last step's alone. One stream has both: `stream.text` is the last step's text, and `text` of its
# `getFullOutput()` that of all steps. So the answer of an agent changes with the way of asking for it, and a program that
# compares, parses or shows `generate().text` gets remarks such as "I look at page 1." glued to it. The steps are the same in both.
# Such remarks were taken out of `stream.text` on purpose (mastra-ai/mastra#18644); `generate` reads `getFullOutput()`.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @mastra/core@1.71.0 zod@4.6.7
cat >run.mjs <<'JS'
import { Agent } from '@mastra/core/agent'
import { createTool } from '@mastra/core/tools'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const { url } = await serve((_, number) => {
  const step = number % 3
  return step === 0 ? { text: 'Oslo.' } : { text: `I look at page ${step}.`, calls: [{ name: 'look', arguments: { step } }] }
})
const look = createTool({
  id: 'look',
  description: 'Look',
  inputSchema: z.object({ step: z.number() }),
  execute: async () => ({ page: 'Towers.' }),
})
const model = { id: 'openai/gpt-4o', url, apiKey: 'k' }
const agent = new Agent({ id: 'agent', name: 'agent', instructions: 'Look.', model, tools: { look } })
const whole = await agent.generate('Which city?', { maxSteps: 5 })
const stream = await agent.stream('Which city?', { maxSteps: 5 })
const streamed = await stream.text
const full = await stream.getFullOutput()
const textsOf = (steps) => steps.map(({ text }) => text)
verdict(
  { generate: whole.text, stream: streamed, full: full.text, steps: [textsOf(whole.steps), textsOf(await stream.steps)] },
  {
    generate: 'I look at page 1.I look at page 2.Oslo.',
    stream: 'Oslo.',
    full: 'I look at page 1.I look at page 2.Oslo.',
    steps: [
      ['I look at page 1.', 'I look at page 2.', 'Oslo.'],
      ['I look at page 1.', 'I look at page 2.', 'Oslo.'],
    ],
  },
)
JS
node run.mjs
