/** What a proxy takes before and beside its work: time to start, and memory. */
import { setTimeout as sleep } from 'node:timers/promises'
import { lengthWithout } from '../stalls.mjs'
import { spread } from '../statistics.mjs'
import { peakMemory, residentMemory } from '../usage.mjs'
import { inRounds } from './rounds.mjs'

const IDLE_MS = 500
const IN_FLIGHT = 32
const TIMES = 2
const MAX_ROUNDS = 3
const MB = 1024 * 1024

async function measureNew(bench, subject) {
  const { result: process, stalls } = await bench.fleet.watch(() => bench.fleet.startSubject(subject))
  try {
    await sleep(IDLE_MS)
    const idle = residentMemory(process.pids()) / MB
    await bench.fleet.answer({ kind: 'hold', count: IN_FLIGHT })
    await bench.fleet.load('burst', process, { size: '1MB', agents: IN_FLIGHT, times: TIMES })
    return { startup: lengthWithout(stalls, process.startup), idle, peak: peakMemory(process.pids()) / MB }
  } finally {
    await bench.fleet.answer({ kind: 'json' })
    await process.stop()
  }
}

function subjectsOf(bench) {
  return bench.subjects.filter(({ isVariant, command }) => command && !isVariant)
}

/** By subject: `startup` (ms), `idle` and `peak` (MB), by round. */
export async function run(bench) {
  await bench.fleet.answer({ kind: 'json' })
  const subjects = subjectsOf(bench).map((subject) => ({ subject }))
  return inRounds(Math.min(bench.rounds, MAX_ROUNDS), subjects, ({ subject }) => measureNew(bench, subject))
}

function rowOf(label, { startup, idle, peak }) {
  return [label, ...[startup, idle, peak].map((rounds) => spread(rounds))]
}

export function table(figures, bench) {
  return {
    title: 'Footprint',
    columns: ['subject', 'start ms', 'idle MB', `peak MB, ${IN_FLIGHT} × 1 MB in flight`],
    rows: subjectsOf(bench).map(({ name, label }) => rowOf(label, figures[name])),
  }
}
