/** Time that a proxy adds to event streams: to the first event, and to every event. */
import { lengthsOutside } from '../stalls.mjs'
import { differences, percentile, spread } from '../statistics.mjs'
import { inRounds, processesOf } from './rounds.mjs'

const STREAMS = 50
/** As long as the events take that were due meanwhile. */
const SETTLING_MS = 40
const US_PER_MS = 1000
const ANSWER = { kind: 'stream', chunks: 25, interval: 40 }
const SIZE = '32KB'
const LOAD = { size: SIZE, agents: STREAMS, duration: 1500, spread: 400 }
/** Short streams before anything is measured: as many as the compiler takes to settle. */
const WARM_ANSWER = { kind: 'stream', chunks: 4, interval: 1 }
const WARMUP = { size: SIZE, agents: STREAMS, times: 60, isStream: true }

/** By subject: `first50`, `first99`, `event50`, `event99` and `cpu` (per event) in µs, by round. */
export async function run(bench) {
  await bench.fleet.answer({ kind: 'json' })
  const processes = await processesOf(bench, subjectsOf(bench))
  await bench.fleet.answer(WARM_ANSWER)
  const able = []
  for (const process of processes) if (await canRelay(bench, process)) able.push(process)
  await bench.fleet.answer(ANSWER)
  const measure = async (process) => {
    const { result, stalls } = await bench.fleet.watch(() => bench.fleet.load('listen', process, LOAD))
    const micro = (spans, share) => percentile(lengthsOutside(stalls, spans, SETTLING_MS), share) * US_PER_MS
    const { first, event, cpu } = result
    return {
      first50: micro(first, 0.5),
      first99: micro(first, 0.99),
      event50: micro(event, 0.5),
      event99: micro(event, 0.99),
      cpu,
    }
  }
  return inRounds(bench.rounds, able, measure)
}

/** Warms a process up. A proxy that can't relay these streams is left out, not the others. */
async function canRelay({ fleet }, process) {
  const { subject } = process
  try {
    await fleet.load('burst', process, WARMUP)
    return true
  } catch (error) {
    if (subject.name === 'governor' || subject.name === 'direct') throw error
    return false
  }
}

function subjectsOf(bench) {
  return bench.subjects.filter(({ isVariant }) => !isVariant)
}

const FIGURES = ['first50', 'first99', 'event50', 'event99']

function rowOf({ name, label, command }, figures) {
  const own = figures[name]
  if (!own) return [label, 'error', ...FIGURES.map(() => '')]
  if (!command) return [label, ...FIGURES.map((figure) => spread(own[figure])), '']
  const added = FIGURES.map((figure) =>
    figures.direct ? spread(differences(own[figure], figures.direct[figure])) : '',
  )
  return [label, ...added, spread(own.cpu)]
}

export function table(figures, bench) {
  const { chunks, interval } = ANSWER
  return {
    title: `${STREAMS} streams of ${chunks} events, one every ${interval} ms`,
    columns: ['subject', 'first p50', 'first p99', 'event p50', 'event p99', 'CPU µs/event'],
    rows: subjectsOf(bench).map((subject) => rowOf(subject, figures)),
    notes: ['Microseconds: what takes without a proxy, and what each proxy adds to it.'],
  }
}
