#!/usr/bin/env bash
# The tool loop of the openai package, whose last answer is plain text that ran into the cap of output tokens. No schema, no
# `parse`, nothing strict.
#
# Seen with openai 6.49.0 and 7.57.0, Node 20.20: `runTools` throws LengthFinishReasonError ("Could not parse response content
# ..."), also on the last of many steps. The text that was paid for is in none of `messages`, `allChatCompletions()` and
# the error: the run's results are there, its answer is not. `create` and `stream` of the same client
# return the same response, text and all, with or without tools.
. "$(dirname "$0")/setup.sh"
for version in 6.49.0 7.57.0; do
  mkdir "$version" && cp package.json server.mjs "$version"
  (cd "$version" && npm install --no-audit --no-fund --loglevel=error "openai@$version")
  cat >"$version/agent.mjs" <<'JS'
import OpenAI from 'openai'
import { serve } from './server.mjs'

const CUT = 'It is Oslo, as far'
const parameters = { type: 'object', properties: { query: { type: 'string' } } }
const search = { name: 'search', description: 'Search', parameters, function: () => 'found' }
const ask = { model: 'm', messages: [{ role: 'user', content: 'Which city?' }] }
const textOf = ({ choices: [{ message, finish_reason }] }) => `${finish_reason}: ${message.content}`

export async function run() {
  const steps = 5
  const looping = await serve((_, number) =>
    number <= steps ? { calls: [{ name: 'search', arguments: { query: `q${number}` } }] } : { text: CUT, finish: 'length' },
  )
  const client = new OpenAI({ apiKey: 'k', baseURL: looping.url })
  const runner = client.chat.completions.runTools({ ...ask, tools: [{ type: 'function', function: search }] })
  const error = await runner.done().then(() => undefined, (thrown) => thrown)
  const kept = [runner.messages, runner.allChatCompletions(), error.message, { ...error }]
  const cut = await serve(() => ({ text: CUT, finish: 'length' }))
  const { chat } = new OpenAI({ apiKey: 'k', baseURL: cut.url })
  const { function: _, ...declared } = search
  const tools = [{ type: 'function', function: declared }]
  return {
    runTools: `throws ${error?.constructor.name} after ${looping.bodies.length} requests`,
    isTextKept: JSON.stringify(kept).includes(CUT),
    create: textOf(await chat.completions.create({ ...ask, tools })),
    stream: textOf(await chat.completions.stream({ ...ask, tools }).finalChatCompletion()),
  }
}
JS
done
cat >run.mjs <<'JS'
import { verdict } from './server.mjs'

const seen = {}
for (const version of ['6.49.0', '7.57.0']) seen[version] = await (await import(`./${version}/agent.mjs`)).run()
const both = {
  runTools: 'throws LengthFinishReasonError after 6 requests',
  isTextKept: false,
  create: 'length: It is Oslo, as far',
  stream: 'length: It is Oslo, as far',
}
verdict(seen, { '6.49.0': both, '7.57.0': both })
JS
node run.mjs
