/** What a second worker gives: Governor with its sessions in Redis, as one process and as two, on all cores. */
import { readFileSync } from 'node:fs'
import { median, spread } from '../statistics.mjs'
import { governorOnRedis, redis } from '../subjects.mjs'
import { inRounds } from './rounds.mjs'

const COUNTS = [1, 2]
const LOAD = { size: '32KB', agents: 16, requests: 3_000 }
const WARMUP = { size: 'steps', agents: 16, requests: 20_000 }

/** Redis is started beside Governor, and is not Governor's. */
function isRedis(pid) {
  return readFileSync(`/proc/${pid}/comm`, 'utf8').startsWith('redis')
}

function subjectOf(count) {
  return {
    name: `workers-${count}`,
    label: count === 1 ? 'one worker' : `${count} workers`,
    place: 'all',
    situation: 'quiet',
    command: (settings) => ({ ...governorOnRedis(settings, `server: { workers: ${count} }\n`), isAlone: false }),
  }
}

/** By subject: `cpu` (µs a request, of all of Governor's processes), `rate` (requests a second), `busy` (cores), by round. */
export async function run(bench) {
  if (!redis) return undefined
  await bench.fleet.answer({ kind: 'json' })
  const processes = []
  for (const count of COUNTS) {
    const process = await bench.fleet.startSubject(subjectOf(count))
    processes.push({ ...process, pids: () => process.pids().filter((pid) => !isRedis(pid)) })
  }
  try {
    for (const process of processes) await bench.fleet.load('saturate', process, WARMUP)
    return await inRounds(bench.rounds, processes, (process) => bench.fleet.load('saturate', process, LOAD))
  } finally {
    for (const process of processes) await process.stop()
  }
}

export function table(figures) {
  return {
    title: `Workers, ${LOAD.size}, sessions in Redis; client, provider and Redis share the cores`,
    columns: ['Governor', 'requests/s', 'CPU µs/request', 'cores busy'],
    rows: Object.entries(figures ?? {}).map(([name, { rate, cpu, busy }]) => [
      name.replace('-', ': '),
      spread(rate, 0),
      spread(cpu, 0),
      median(busy).toFixed(2),
    ]),
  }
}
