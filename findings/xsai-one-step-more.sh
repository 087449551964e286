#!/usr/bin/env bash
# xsAI's generateText beside its streamText, with the same model and `maxSteps`.
#
# Seen with @xsai/generate-text, @xsai/stream-text and @xsai/tool 0.4.4, Node 20.20: generateText asks once more than `maxSteps` (1 unless set) says,
# and with `maxSteps: 1` pays for two answers where streamText pays for one. `usage` of a run is that of its last step; streamText has a
# `totalUsage` beside it, generateText has none. And an answer that the output limit cuts is asked for again by generateText, behind what came of
# it: `text` is what that second answer adds, without the beginning.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @xsai/generate-text@0.4.4 @xsai/stream-text@0.4.4 @xsai/tool@0.4.4
cat >run.mjs <<'JS'
import { generateText } from '@xsai/generate-text'
import { streamText } from '@xsai/stream-text'
import { rawTool } from '@xsai/tool'
import { serve, verdict } from './server.mjs'

const models = {
  calls: (_, number) => ({ calls: [{ name: 'read', arguments: { page: number } }] }),
  cut: (_, number) => (number === 1 ? { text: 'It is not Bergen, and', finish: 'length' } : { text: 'it is Oslo.' }),
}
const runs = {
  async generateText(options) {
    const { text, usage } = await generateText(options)
    return { text: text ?? '', tokens: usage.total_tokens }
  },
  async streamText(options) {
    const run = streamText({ ...options, streamOptions: { includeUsage: true } })
    let text = ''
    for await (const piece of run.textStream) text += piece
    const [usage, total] = await Promise.all([run.usage, run.totalUsage])
    return { text, tokens: usage.total_tokens, ofAllSteps: total.total_tokens }
  },
}

async function ask(run, model, maxSteps) {
  const { url, bodies } = await serve(models[model])
  const executed = []
  const execute = async ({ page }) => {
    executed.push(page)
    return `Page ${page}`
  }
  const parameters = { type: 'object', properties: { page: { type: 'number' } } }
  const tools = [rawTool({ name: 'read', description: 'Read', parameters, execute })]
  const messages = [{ role: 'user', content: 'Which city?' }]
  const result = await runs[run]({ baseURL: `${url}/`, apiKey: 'k', model: 'm', messages, tools, maxSteps })
  return { requests: bodies.length, executed: executed.join(' '), ...result }
}

const seen = {}
for (const run of Object.keys(runs))
  seen[run] = {
    'calls, maxSteps 1': await ask(run, 'calls', 1),
    'calls, maxSteps 3': await ask(run, 'calls', 3),
    'a cut answer, maxSteps 1': await ask(run, 'cut', 1),
  }
const step = { text: '', tokens: 1007 }
verdict(seen, {
  generateText: {
    'calls, maxSteps 1': { requests: 2, executed: '1', ...step },
    'calls, maxSteps 3': { requests: 4, executed: '1 2 3', ...step },
    'a cut answer, maxSteps 1': { requests: 2, executed: '', text: 'it is Oslo.', tokens: 1007 },
  },
  streamText: {
    'calls, maxSteps 1': { requests: 1, executed: '1', ...step, ofAllSteps: 1007 },
    'calls, maxSteps 3': { requests: 3, executed: '1 2 3', ...step, ofAllSteps: 3021 },
    'a cut answer, maxSteps 1': {
      requests: 1,
      executed: '',
      text: 'It is not Bergen, and',
      tokens: 1007,
      ofAllSteps: 1007,
    },
  },
})
JS
node run.mjs
