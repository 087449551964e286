/** CPU time per request, and requests a second, with a proxy's core as busy as the load can make it. */
import { median, ratio } from '../statistics.mjs'
import { inRounds, processesOf } from './rounds.mjs'

/** As many as keep a core busy. */
const AGENTS = { '1KB': 32, '32KB': 16, '256KB': 8, '1MB': 4, '4MB': 2 }
const DURATION_MS = 600
/** Before anything is measured. V8 takes some 50,000 requests until it has nothing left to compile. */
const WARMUP_MS = 4_000

export const isPerSize = true

/** By subject: `cpu` (µs a request), `rate` (requests a second) and `busy` (share of a core), by round. */
export async function run(bench, size) {
  const agents = AGENTS[size]
  await bench.fleet.answer({ kind: 'json' })
  const processes = await processesOf(bench, bench.subjects)
  const saturate = (process, duration) => bench.fleet.load('saturate', process, { size, agents, duration })
  for (const process of processes) await saturate(process, WARMUP_MS)
  return inRounds(bench.rounds, processes, (process) => saturate(process, DURATION_MS))
}

function rowOf({ name, label, command }, figures) {
  const { cpu, rate, busy } = figures[name]
  if (!command) return [label, median(rate).toFixed(0), '', '', '']
  const toPipe = figures.pipe ? ratio(cpu, figures.pipe.cpu).toFixed(2) : ''
  return [
    label,
    median(rate).toFixed(0),
    median(cpu).toFixed(0),
    toPipe,
    `${(median(busy) * 100).toFixed(0)} %`,
  ]
}

export function table(figures, bench, size) {
  return {
    title: `Saturation, ${size}`,
    columns: ['subject', 'requests/s', 'CPU µs/request', '÷ pipe', 'core busy'],
    rows: bench.subjects.map((subject) => rowOf(subject, figures)),
  }
}
