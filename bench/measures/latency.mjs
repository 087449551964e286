/** Time that a proxy adds to a request on an otherwise idle machine: one agent, one connection. */
import { lengthsOutside } from '../stalls.mjs'
import { differences, percentile, spread } from '../statistics.mjs'
import { inRounds, processesOf } from './rounds.mjs'

const REQUESTS = { '1KB': 150, '32KB': 100, '256KB': 60, '1MB': 30, '4MB': 15 }
const WARMUP = 5
const US_PER_MS = 1000

export const sizes = Object.keys(REQUESTS)

/** By subject: `p50` and `p99` in µs, by round. */
export async function run(bench, size) {
  await bench.fleet.answer({ kind: 'json' })
  const processes = await processesOf(bench, subjectsOf(bench))
  const load = { size, warmup: WARMUP, requests: REQUESTS[size] }
  const measure = async (process) => {
    const { result, stalls } = await bench.fleet.watch(() => bench.fleet.load('queue', process, load))
    const times = lengthsOutside(stalls, result)
    return { p50: percentile(times, 0.5) * US_PER_MS, p99: percentile(times, 0.99) * US_PER_MS }
  }
  await inRounds(1, processes, measure)
  return inRounds(bench.rounds, processes, measure)
}

function subjectsOf(bench) {
  return bench.subjects.filter(({ isVariant }) => !isVariant)
}

function rowOf({ name, label, command }, figures) {
  const own = figures[name]
  const added = (share) => (command && figures.direct ? spread(differences(own[share], figures.direct[share])) : '')
  return [label, spread(own.p50), spread(own.p99), added('p50'), added('p99')]
}

export function table(figures, bench, size) {
  return {
    title: `One connection, ${size}`,
    columns: ['subject', 'p50 µs', 'p99 µs', 'added p50', 'added p99'],
    rows: subjectsOf(bench).map((subject) => rowOf(subject, figures)),
  }
}
