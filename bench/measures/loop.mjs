/** How long a proxy's event loop is away while it takes large bodies: what everybody else waits for. */
import { join } from 'node:path'
import { lengthsOutside } from '../stalls.mjs'
import { percentile, spread } from '../statistics.mjs'
import { inRounds } from './rounds.mjs'

const SUBJECTS = ['governor', 'governor-notice', 'pipe', 'parse']
const LOAD = { size: '4MB', agents: 2, interval: 50 }
const WARMUP_REQUESTS = 20
const REQUESTS = 40
/** What the timer is set to that is watched. */
const TURN_MS = 1
const GAUGE = join(import.meta.dirname, '..', 'subjects', 'loop-delay.mjs')

function subjectsOf(bench) {
  return bench.subjects.filter(({ name }) => SUBJECTS.includes(name))
}

async function measureRound(bench, process) {
  const { result: turns, stalls } = await bench.fleet.watch(async () => {
    await process.ask('begin')
    await bench.fleet.load('pace', process, { ...LOAD, requests: REQUESTS })
    return process.ask('end')
  })
  const delays = lengthsOutside(stalls, turns).map((length) => Math.max(0, length - TURN_MS))
  return { p50: percentile(delays, 0.5), p99: percentile(delays, 0.99), max: Math.max(...delays) }
}

/** By subject: `p50`, `p99` and `max` in ms, by round. */
export async function run(bench) {
  await bench.fleet.answer({ kind: 'json' })
  const processes = []
  try {
    for (const subject of subjectsOf(bench)) {
      const options = { nodeFlags: ['--import', GAUGE], hasChannel: true }
      processes.push(await bench.fleet.startSubject(subject, options))
    }
    for (const process of processes) await bench.fleet.load('pace', process, { ...LOAD, requests: WARMUP_REQUESTS })
    return await inRounds(bench.rounds, processes, (process) => measureRound(bench, process))
  } finally {
    for (const process of processes) await process.stop()
  }
}

export function table(figures, bench) {
  const text = (rounds) => spread(rounds, 1)
  return {
    title: `Event loop delay, ${1000 / LOAD.interval} requests of 4 MB a second`,
    columns: ['subject', 'p50 ms', 'p99 ms', 'max ms'],
    rows: subjectsOf(bench).map(({ name, label }) => {
      const { p50, p99, max } = figures[name]
      return [label, text(p50), text(p99), text(max)]
    }),
  }
}
