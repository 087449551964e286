#!/usr/bin/env bash
# Three tracers of the openai package, and a stream of 20 words that its reader leaves with `break` after the first, or aborts.
#
# Seen with openai 6.49.0, @langfuse/openai 5.11.1, @traceloop/instrumentation-openai 0.27.0, @arizeai/openinference-instrumentation-openai 4.2.7, Node
# 20.20. Without a tracer both stop the provider. With one:
#                   break                                          abort
#   Langfuse        is stopped; no span                            a span of the word
#   Traceloop       is stopped; no span                            a span of the word, finish reason `stop`, which nobody sent
#   OpenInference   the provider sends all 20 words;               a span of the word
#                   a span of 20 words that nobody read
# So what was left with `break` is paid for and in no trace with two of them, and with the third it is generated to its end because it is traced.
# No span of an aborted stream has the status of an error.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error openai@6.49.0 @opentelemetry/sdk-trace-node@2.12.1 @opentelemetry/api@1.9.1 \
  @langfuse/openai@5.11.1 @traceloop/instrumentation-openai@0.27.0 @arizeai/openinference-instrumentation-openai@4.2.7
cat >tracer.mjs <<'JS'
import { once } from 'node:events'
import http from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { OpenAIInstrumentation as OpenInference } from '@arizeai/openinference-instrumentation-openai'
import { observeOpenAI } from '@langfuse/openai'
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node'
import { OpenAIInstrumentation as Traceloop } from '@traceloop/instrumentation-openai'
import OpenAI from 'openai'

const exporter = new InMemorySpanExporter()
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
provider.register()
const patch = (Instrumentation) => {
  const instrumentation = new Instrumentation()
  instrumentation.setTracerProvider(provider)
  instrumentation.manuallyInstrument(OpenAI)
  return (client) => client
}
const tracers = {
  none: () => (client) => client,
  langfuse: () => observeOpenAI,
  traceloop: () => patch(Traceloop),
  openinference: () => patch(OpenInference),
}
const wrap = tracers[process.argv[2]]()

/** A provider that streams 20 words in 2 seconds; says how many it had sent when the stream ended. */
async function serveWords() {
  let sent = 0
  let end
  const ended = new Promise((resolve) => {
    end = resolve
  })
  const server = http.createServer(async (request, reply) => {
    reply.once('close', end)
    for await (const _ of request);
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    while (sent < 20 && !reply.destroyed) {
      sent++
      const choices = [{ index: 0, delta: { content: 'word ' }, finish_reason: sent === 20 ? 'length' : null }]
      const chunk = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'gpt-4o', choices }
      reply.write(`data: ${JSON.stringify(chunk)}\n\n`)
      await sleep(100)
    }
    reply.end('data: [DONE]\n\n')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return { url: `http://127.0.0.1:${server.address().port}`, sent: () => sent, ended }
}

const readers = {
  async read(stream) {
    for await (const _ of stream);
  },
  async break(stream) {
    for await (const _ of stream) break
  },
  async abort(stream, controller) {
    for await (const _ of stream) controller.abort()
  },
}
const seen = {}
for (const [name, read] of Object.entries(readers)) {
  exporter.reset()
  const { url, sent, ended } = await serveWords()
  const client = wrap(new OpenAI({ apiKey: 'k', baseURL: url }))
  const controller = new AbortController()
  const request = { model: 'gpt-4o', messages: [{ role: 'user', content: 'Which city?' }], stream: true }
  await read(await client.chat.completions.create(request, { signal: controller.signal }), controller)
  await ended
  await sleep(1000)
  const [span] = exporter.getFinishedSpans()
  const said = Object.values(span?.attributes ?? {}).map(String)
  const words = Math.max(...said.map((value) => value.split('word ').length - 1))
  const reason = /length|stop/.exec(said.join())?.[0] ?? 'no reason'
  seen[name] = {
    provider: sent() === 20 ? 'sends all' : 'is stopped',
    traced: span ? `${words === 20 ? 'all' : 'a part'}, ${reason}, status ${span.status.code}` : 'nothing',
  }
}
process.stdout.write(JSON.stringify(seen))
process.exit()
JS
cat >run.mjs <<'JS'
import { execFileSync } from 'node:child_process'
import { verdict } from './server.mjs'

const seen = {}
for (const name of ['none', 'langfuse', 'traceloop', 'openinference'])
  seen[name] = JSON.parse(execFileSync(process.execPath, ['tracer.mjs', name], { stdio: ['ignore', 'pipe', 'ignore'] }))
const whole = (reason) => ({ provider: 'sends all', traced: `all, ${reason}, status 0` })
const stopped = (traced) => ({ provider: 'is stopped', traced })
verdict(seen, {
  none: { read: { provider: 'sends all', traced: 'nothing' }, break: stopped('nothing'), abort: stopped('nothing') },
  langfuse: { read: whole('no reason'), break: stopped('nothing'), abort: stopped('a part, no reason, status 0') },
  traceloop: { read: whole('length'), break: stopped('nothing'), abort: stopped('a part, stop, status 0') },
  openinference: { read: whole('length'), break: whole('length'), abort: stopped('a part, no reason, status 0') },
})
JS
node run.mjs
