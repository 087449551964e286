/** CPU time per request, and requests a second, with a proxy's core as busy as the load can make it. */
import { median, ratios, spread } from '../statistics.mjs'
import { inRounds, processesOf } from './rounds.mjs'

/** As many as keep a core busy. */
const AGENTS = { '1KB': 32, '32KB': 16, '256KB': 8, '1MB': 4, '4MB': 2 }
const DURATION_MS = 600
/**
 * Before anything is measured: at least so long and so many requests, as a busy machine answers fewer. V8 takes some 50,000
 * requests until it has nothing left to compile.
 */
const WARMUP_MS = 4_000
const WARMUP_REQUESTS = { '1KB': 30_000, '32KB': 20_000, '256KB': 6_000, '1MB': 2_000, '4MB': 400 }
const WARMUP_LIMIT_MS = 60_000

export const isPerSize = true

/** By subject: `cpu` (µs a request), `rate` (requests a second) and `busy` (share of a core), by round. */
export async function run(bench, size) {
  const agents = AGENTS[size]
  await bench.fleet.answer({ kind: 'json' })
  const processes = await processesOf(bench, bench.subjects)
  const load = { size, agents, duration: DURATION_MS }
  const warmup = { ...load, duration: WARMUP_MS, enough: WARMUP_REQUESTS[size], limit: WARMUP_LIMIT_MS }
  for (const process of processes) await bench.fleet.load('saturate', process, warmup)
  return inRounds(bench.rounds, processes, (process) => bench.fleet.load('saturate', process, load))
}

function rowOf({ name, label, command }, figures) {
  const { cpu, rate, busy } = figures[name]
  if (!command) return [label, median(rate).toFixed(0), '', '', '']
  const toPipe = figures.pipe ? spread(ratios(cpu, figures.pipe.cpu), 2) : ''
  return [label, median(rate).toFixed(0), spread(cpu), toPipe, `${(median(busy) * 100).toFixed(0)} %`]
}

export function table(figures, bench, size) {
  return {
    title: `Saturation, ${size}`,
    columns: ['subject', 'requests/s', 'CPU µs/request', '÷ pipe', 'core busy'],
    rows: bench.subjects.map((subject) => rowOf(subject, figures)),
  }
}
