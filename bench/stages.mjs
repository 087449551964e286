/** The stages of the guard that need no session, each alone, hot, and without sockets: the tool to develop with. */
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { build } from 'esbuild'
import { WHOLE } from './bodies.mjs'
import { createAgent } from './sessions.mjs'
import { median } from './statistics.mjs'

const ROOT = join(import.meta.dirname, '..')
/** Rounds that are measured, as given; the compiler takes those before them. */
const ROUNDS = Number(process.argv[2] ?? 8)
const WARMUP = Math.min(ROUNDS, 6)
/** Requests that sessions of five are measured with in a round. */
const REQUESTS = 400
const HEAD_END = Buffer.from('\r\n\r\n')

const ENTRY = `
export { registryOf } from './src/config/policies.ts'
export { checkConfig } from './src/config/load.ts'
export { hashBody, nameOf } from './src/core/hash.ts'
export { factsOf, isAgentic } from './src/core/session/request-facts.ts'
export { chat } from './src/dialect/chat/index.ts'
export { createKnownPrefixes, longestKnown, readInTurns } from './src/proxy/session/read-transcript.ts'
export { createMetrics } from './src/telemetry/metrics.ts'
`

/** The functions of the tree named `root`, which need not be built. */
async function load(root) {
  const outfile = join(root, 'stages.tmp.mjs')
  const stdin = { contents: ENTRY, resolveDir: root, loader: 'ts' }
  await build({ stdin, outfile, bundle: true, platform: 'node', format: 'esm', packages: 'external' })
  try {
    return await import(pathToFileURL(outfile).href)
  } finally {
    rmSync(outfile)
  }
}

const USAGE = { input: 1000, output: 20, estimated: false, cost: 0.001 }
const ANSWERED = {
  kind: 'answered',
  upstream: 'openai',
  model: 'm',
  thread: 0,
  iteration: 1,
  toolCalls: 1,
  usage: USAGE,
}
const OF_REQUEST = { dialect: 'chat', method: 'POST', path: '/v1/chat/completions', status: 200, outcome: 'completed' }
const TIMES = { totalMs: 2, upstreamMs: 1, overheadMs: 0.2 }
const ENDED = { kind: 'request_ended', upstream: 'openai', ...OF_REQUEST, ...TIMES, verdict: 'allow', isRetry: false }

/** Returns what measures one body: adds to each list in `times`, by stage, its microseconds. */
function stagesOf(tree) {
  const registry = tree.registryOf(tree.checkConfig({}, 'bench'))
  const prefixes = tree.createKnownPrefixes()
  const metrics = tree.createMetrics({ sessions: 0, openRequests: 0, isStoreUp: true })
  return async (body, times) => {
    let since = process.hrtime.bigint()
    const lap = (name) => {
      times[name] ??= []
      times[name].push(Number(process.hrtime.bigint() - since) / 1000)
      since = process.hrtime.bigint()
    }
    const tenant = tree.nameOf('Bearer sk-bench-0123456789').slice(0, 16)
    lap('tenant')
    const hashes = tree.hashBody(body, `chat ${tenant}`)
    const known = tree.longestKnown(prefixes, hashes, body)
    lap('hash')
    const asked = tree.chat.read({ path: '/v1/chat/completions', body, known })
    tree.isAgentic(asked.conversation, registry)
    lap('index')
    const transcript = await tree.readInTurns(asked, registry, { hashes, known, prefixes })
    lap('fold')
    tree.factsOf(transcript, asked.conversation, hashes.whole, registry, body.length)
    lap('facts')
    metrics.record(ANSWERED)
    metrics.record(ENDED)
    lap('metrics')
    asked.conversation.forget()
  }
}

const trees = { this: ROOT, ...(process.env.BENCH_OTHER && { other: process.env.BENCH_OTHER }) }
const measures = []
for (const [name, root] of Object.entries(trees)) measures.push({ name, measure: stagesOf(await load(root)) })
for (const size of ['1KB', '32KB', 'steps']) {
  const { next, requests } = createAgent({ size, situation: 'quiet' })
  const count = size in WHOLE ? requests : REQUESTS
  const byTree = Object.fromEntries(measures.map(({ name }) => [name, {}]))
  for (let round = 0; round < WARMUP + ROUNDS; round++) {
    for (const { name, measure } of measures) {
      const times = round < WARMUP ? {} : byTree[name]
      for (let at = 0; at < count; at++) {
        const bytes = next()
        await measure(Buffer.from(bytes.subarray(bytes.indexOf(HEAD_END) + HEAD_END.length)), times)
      }
    }
  }
  for (const [name, times] of Object.entries(byTree)) {
    const costs = Object.entries(times).map(([stage, all]) => `${stage} ${median(all).toFixed(1)}`)
    const sum = Object.values(times).reduce((whole, all) => whole + median(all), 0)
    process.stdout.write(`${size}, ${name}: median µs: ${costs.join(', ')}; together ${sum.toFixed(1)}\n`)
  }
}
