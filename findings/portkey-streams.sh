#!/usr/bin/env bash
# A gateway in front of a model API, installed fresh, answers every streamed request with 500 and every other one well.
#
# Seen with @portkey-ai/gateway 1.15.2 and hono 4.13.19, Node 20.20 and 22.23:
#                               whole answer      streamed answer
#   @hono/node-server 1.14.0    200               200, the provider's chunks
#   @hono/node-server 1.19.19   200               500 {"status":"failure","message":"Something went wrong"}
# The gateway asks for `^1.3.3`, so npm takes the newest 1.x. It appends its own headers to the response that `fetch` gave it. Up to 1.14.0
# the server's package lets it; later 1.x releases leave that response as the platform makes it, with headers that can't be changed
# (`TypeError: immutable`; 1.14.4 and 1.18.2 as well). Whole answers are copied first, so a check without a stream finds nothing. The
# provider has answered, and is paid, each time.
. "$(dirname "$0")/setup.sh"
for version in 1.14.0 1.19.19; do
  mkdir "$version"
  cat >"$version/package.json" <<JSON
{"private": true, "type": "module", "overrides": {"@hono/node-server": "$version", "hono": "4.13.19"}}
JSON
  (cd "$version" && npm install --no-audit --no-fund --loglevel=error @portkey-ai/gateway@1.15.2)
done
cat >run.mjs <<'JS'
import { serve, startPortkey, verdict } from './server.mjs'

const { url, bodies } = await serve(() => ({ text: 'It is Oslo.' }))
const seen = {}
for (const version of ['1.14.0', '1.19.19']) {
  const gateway = await startPortkey(version)
  const ask = async (stream) => {
    const request = { model: 'gpt-4o', stream, messages: [{ role: 'user', content: 'Which city?' }] }
    const reply = await gateway.ask({ 'x-portkey-provider': 'openai', 'x-portkey-custom-host': url }, request)
    return `${reply.status}${(await reply.text()).includes('Oslo') ? ', the answer' : ''}`
  }
  seen[version] = { whole: await ask(false), streamed: await ask(true) }
  gateway.end()
}
seen.askedOfProvider = bodies.length
verdict(seen, {
  '1.14.0': { whole: '200, the answer', streamed: '200, the answer' },
  '1.19.19': { whole: '200, the answer', streamed: '500' },
  askedOfProvider: 4,
})
JS
node run.mjs
