/** CPU time per request on bodies that were never sent before, with a proxy's core as busy as the load can make it. */
import { SIZES } from '../bodies.mjs'
import { costRatio, lowerFifth, median, percentile } from '../statistics.mjs'
import { inRounds, processesOf } from './rounds.mjs'

/**
 * By kind of body: so many agents, so many requests a round. `talk` is relayed unguarded; `steps` are whole
 * conversations from their first step to their last; `growing` is one that grows to 1 MB.
 */
const LOADS = {
  talk: { agents: 8, requests: 3000 },
  '1KB': { agents: 8, requests: 2000 },
  '32KB': { agents: 8, requests: 1000 },
  steps: { agents: 8, requests: 900 },
  growing: { agents: 1, requests: 100 },
  '256KB': { agents: 8, requests: 300 },
  '1MB': { agents: 4, requests: 120 },
  '4MB': { agents: 2, requests: 40 },
}
/** V8 compiles for some 20,000 requests: each process works on so many once, then on four rounds of each kind. */
const WARMUP = { size: 'steps', situation: 'quiet', agents: 8, requests: 20_000, maxMs: 40_000 }
const WARMUP_ROUNDS = 4

export const sizes = Object.keys(LOADS)

const warm = new WeakSet()

/** By subject: `cpu` (µs a request), `rate` (requests a second) and `busy` (share of a core), by round. */
export async function run(bench, size) {
  const load = { size, ...LOADS[size] }
  await bench.fleet.answer({ kind: 'json' })
  const subjects = bench.subjects.filter(({ situation }) => size in SIZES || situation === 'quiet')
  const processes = await processesOf(bench, subjects)
  for (const process of processes) {
    if (!warm.has(process)) await bench.fleet.load('saturate', process, WARMUP)
    warm.add(process)
    await bench.fleet.load('saturate', process, { ...load, requests: WARMUP_ROUNDS * load.requests })
  }
  return inRounds(bench.rounds, processes, (process) => bench.fleet.load('saturate', process, load))
}

/** The subjects that others are compared with, and the name of that column. */
const BASES = { pipe: '÷ pipe', undici: '÷ undici', 'governor-other': '÷ other' }

function rowOf({ name, label, command }, figures) {
  const { cpu, rate, busy } = figures[name]
  const bases = Object.keys(BASES).filter((base) => figures[base])
  if (!command) return [label, median(rate).toFixed(0), '', ...bases.map(() => ''), '']
  const shares = bases.map((base) => costRatio(cpu, figures[base].cpu).text)
  const cost = `${lowerFifth(cpu).toFixed(0)} (${percentile(cpu, 0).toFixed(0)}–${percentile(cpu, 1).toFixed(0)})`
  return [label, median(rate).toFixed(0), cost, ...shares, `${(median(busy) * 100).toFixed(0)} %`]
}

export function table(figures, bench, size) {
  const bases = Object.keys(BASES).filter((base) => figures[base])
  return {
    title: `CPU time, ${size}`,
    columns: ['subject', 'requests/s', 'CPU µs/request', ...bases.map((base) => BASES[base]), 'core busy'],
    rows: bench.subjects.filter(({ name }) => figures[name]).map((subject) => rowOf(subject, figures)),
  }
}
