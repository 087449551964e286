/** What a new process takes: from its start to its first answer, and for its first requests. */
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { lengthWithout } from '../stalls.mjs'
import { costRatio, lowerFifth, median } from '../statistics.mjs'
import { CpuMeter } from '../usage.mjs'
import { inRounds } from './rounds.mjs'

const HEALTH = Buffer.from('GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n')
/** Nothing is asked for so long: a process may prepare itself meanwhile. */
const IDLE_MS = 3_000
const COLD = { size: '32KB', agents: 8, requests: 1_000, isCold: true }
/** After so many more requests a thousand are measured again. */
const MORE = 10_000

const BARE = {
  name: 'fastify-bare',
  label: 'Fastify that only answers /health',
  command: ({ port }) => ({
    command: [process.execPath, join(import.meta.dirname, '..', 'subjects', 'fastify-bare.mjs'), String(port)],
  }),
}

function cpuOf(process) {
  const meter = new CpuMeter(process.pids())
  const cpu = meter.read() / 1_000
  meter.close()
  return cpu
}

async function measureNew(bench, subject) {
  const { result: process, stalls } = await bench.fleet.watch(() => bench.fleet.startSubject(subject, { ping: HEALTH }))
  try {
    const startup = { ms: lengthWithout(stalls, process.startup), startCpu: cpuOf(process) }
    if (subject === BARE) return startup
    const before = cpuOf(process)
    await sleep(IDLE_MS)
    const idleCpu = cpuOf(process) - before
    const load = (options) => bench.fleet.load('saturate', process, { ...COLD, ...options })
    const { cpu: first } = await load({})
    await load({ requests: MORE })
    const { cpu: later } = await load({})
    return { ...startup, idleCpu, first, later }
  } finally {
    await process.stop()
  }
}

function subjectsOf(bench) {
  const measured = bench.subjects.filter(({ name }) => ['governor', 'governor-other'].includes(name))
  return [BARE, ...measured]
}

/** By subject: `ms` and `startCpu` (ms) to the first answer, `idleCpu` (ms), `first` and `later` (µs a request), by round. */
export async function run(bench) {
  await bench.fleet.answer({ kind: 'json' })
  const subjects = subjectsOf(bench).map((subject) => ({ subject }))
  return inRounds(bench.rounds, subjects, ({ subject }) => measureNew(bench, subject))
}

export function table(figures, bench) {
  const cost = (values) => (values ? `${lowerFifth(values).toFixed(0)}, median ${median(values).toFixed(0)}` : '')
  return {
    title: 'A new process',
    columns: [
      'subject',
      'start ms',
      'start CPU ms',
      '÷ Fastify',
      'CPU ms when idle',
      'first 1,000: CPU µs each',
      'later',
    ],
    rows: subjectsOf(bench).map(({ name, label }) => {
      const { ms, startCpu, idleCpu, first, later } = figures[name]
      const ratio = costRatio(startCpu, figures[BARE.name].startCpu).text
      return [label, cost(ms), cost(startCpu), ratio, cost(idleCpu), cost(first), cost(later)]
    }),
  }
}
