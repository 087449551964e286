/** CPU time per request, and requests a second, with a proxy's core as busy as the load can make it. */
import { median, ratio } from '../statistics.mjs'
import { inRounds, processesOf } from './rounds.mjs'

/** `agents`: as many as keep a core busy. `warmup`: requests of each before anything is measured. */
const LOADS = {
  '1KB': { agents: 32, warmup: 400 },
  '32KB': { agents: 16, warmup: 300 },
  '256KB': { agents: 8, warmup: 150 },
  '1MB': { agents: 4, warmup: 100 },
  '4MB': { agents: 2, warmup: 20 },
}
const DURATION_MS = 600

export const isPerSize = true

/** By subject: `cpu` (µs a request), `rate` (requests a second) and `busy` (share of a core), by round. */
export async function run(bench, size) {
  const { agents, warmup } = LOADS[size]
  await bench.fleet.answer({ kind: 'json' })
  const processes = await processesOf(bench, bench.subjects)
  for (const process of processes) await bench.fleet.load('burst', process, { size, agents, times: warmup })
  return inRounds(bench.rounds, processes, (process) =>
    bench.fleet.load('saturate', process, { size, agents, duration: DURATION_MS }),
  )
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
