#!/usr/bin/env bash
# One agent, one answer that its model could not finish (it ran into the cap of output tokens), two APIs, two releases.
#
# Seen with @openai/agents 0.14.3 and 0.20.0, Node 20.20:
#                        Chat Completions (`length`)       Responses (`incomplete`)
#   0.14.3               the text is the final output      the text is the final output
#   0.20.0               the text is the final output      throws ModelBehaviorError
# So a release of the same package turned a run that ended well into one that throws, and only over one of the two APIs that
# an agent can be switched between with an option (`useResponses`). Nothing says in either case that the answer is cut.
. "$(dirname "$0")/setup.sh"
for version in 0.14.3 0.20.0; do
  mkdir "$version" && cp package.json server.mjs "$version"
  (cd "$version" && npm install --no-audit --no-fund --loglevel=error "@openai/agents@$version" zod@4.6.7)
  cat >"$version/agent.mjs" <<'JS'
import { Agent, OpenAIProvider, Runner, setTracingDisabled } from '@openai/agents'
import { serve } from './server.mjs'

setTracingDisabled(true)
export async function run(useResponses) {
  const { url } = await serve(() => ({ text: 'It is Oslo, as far', finish: useResponses ? 'incomplete' : 'length' }))
  const runner = new Runner({ modelProvider: new OpenAIProvider({ apiKey: 'k', baseURL: url, useResponses }) })
  const agent = new Agent({ name: 'a', model: 'gpt-4o' })
  return runner.run(agent, 'Which city?').then(
    ({ finalOutput }) => finalOutput,
    (error) => `throws ${error.constructor.name}`,
  )
}
JS
done
cat >run.mjs <<'JS'
import { verdict } from './server.mjs'

const seen = {}
for (const version of ['0.14.3', '0.20.0']) {
  const { run } = await import(`./${version}/agent.mjs`)
  seen[version] = { chat: await run(false), responses: await run(true) }
}
const text = 'It is Oslo, as far'
verdict(seen, {
  '0.14.3': { chat: text, responses: text },
  '0.20.0': { chat: text, responses: 'throws ModelBehaviorError' },
})
JS
node run.mjs
