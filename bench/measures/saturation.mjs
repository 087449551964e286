/** CPU time per request, and requests a second, with a proxy's core as busy as the load can make it. */
import { median, ratio } from '../statistics.mjs'
import { inRounds, processesOf } from './rounds.mjs'

/**
 * `agents`: as many as keep a core busy. `warmup`: requests of each before anything is measured. `windows`: so many
 * pieces of 8 ms or more make one round.
 */
const LOADS = {
  '1KB': { agents: 32, warmup: 400, windows: 25 },
  '32KB': { agents: 16, warmup: 200, windows: 25 },
  '256KB': { agents: 8, warmup: 60, windows: 25 },
  '1MB': { agents: 4, warmup: 30, windows: 20 },
  '4MB': { agents: 2, warmup: 10, windows: 10 },
}

export const isPerSize = true

/** By subject: `cpu` (µs a request), `rate` (requests a second), `busy` and `stalled` (shares), by round. */
export async function run(bench, size) {
  const { agents, warmup, windows } = LOADS[size]
  await bench.fleet.answer({ kind: 'json' })
  const processes = await processesOf(bench, bench.subjects)
  for (const process of processes) await bench.fleet.load('burst', process, { size, agents, times: warmup })
  return inRounds(bench.rounds, processes, (process) =>
    bench.fleet.load('saturate', process, { size, agents, windows }),
  )
}

function rowOf({ name, label, command }, figures) {
  const { cpu, rate, busy, stalled } = figures[name]
  if (!command) return [label, median(rate).toFixed(0), '', '', '', '']
  const toPipe = figures.pipe ? ratio(cpu, figures.pipe.cpu).toFixed(2) : ''
  const shares = [busy, stalled].map((share) => `${(median(share) * 100).toFixed(0)} %`)
  return [label, median(rate).toFixed(0), median(cpu).toFixed(0), toPipe, ...shares]
}

export function table(figures, bench, size) {
  return {
    title: `Saturation, ${size}`,
    columns: ['subject', 'requests/s', 'CPU µs/request', '÷ pipe', 'core busy', 'stalled'],
    rows: bench.subjects.map((subject) => rowOf(subject, figures)),
  }
}
