/** Where Governor's CPU time goes under load, by V8's own profiler. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { renderTable } from './report.mjs'
import { sharedTime } from './stalls.mjs'

const WINDOWS = 400
const INTERVAL_US = 250
/** Between two samples so far apart the machine stood still: that is no function's doing. */
const STALL_US = 20 * INTERVAL_US
const AGENTS = 8
const US_PER_MS = 1000
const WARMUP = 100
const TOP = 30
const ROOT = join(import.meta.dirname, '..')

function placeOf({ url, lineNumber }) {
  if (!url.startsWith('file:')) return url
  const path = fileURLToPath(url).replace(`${ROOT}/`, '')
  return `${path}:${lineNumber + 1}`
}

/** Microseconds by function, the function itself only, from `since` on (shared time). */
function selfTimes({ nodes, samples, timeDeltas, startTime }, since) {
  const names = new Map(
    nodes.map(({ id, callFrame }) => [
      id,
      `${callFrame.functionName || '(anonymous)'}\t${placeOf(callFrame)}`,
    ]),
  )
  const times = new Map()
  let now = startTime
  samples.forEach((id, at) => {
    now += timeDeltas[at]
    if (now < since * US_PER_MS || timeDeltas[at] > STALL_US) return
    const name = names.get(id)
    times.set(name, (times.get(name) ?? 0) + timeDeltas[at])
  })
  return times
}

function tableOf(title, profile, since) {
  const times = selfTimes(profile, since)
  times.delete('(idle)\t')
  const busy = [...times.values()].reduce((sum, time) => sum + time, 0)
  const top = [...times].sort(([, a], [, b]) => b - a).slice(0, TOP)
  const rows = top.map(([name, time]) => {
    const [functionName, place] = name.split('\t')
    return [(time / US_PER_MS).toFixed(0), `${((time / busy) * 100).toFixed(1)} %`, functionName, place]
  })
  return { title, columns: ['self ms', 'share', 'function', 'place'], rows }
}

/** Loads one process of a subject with one size and prints its functions by self time. */
async function profileOne(bench, subject, size) {
  const folder = join(bench.fleet.folder, `profile-${subject.name}-${size}`)
  const process = await bench.fleet.startSubject(subject, {
    nodeFlags: ['--cpu-prof', '--cpu-prof-interval', INTERVAL_US, '--cpu-prof-dir', folder],
  })
  await bench.fleet.load('burst', process, { size, agents: AGENTS, times: WARMUP })
  const since = sharedTime()
  const { cpu } = await bench.fleet.load('saturate', process, {
    size,
    agents: AGENTS,
    windows: WINDOWS,
  })
  await process.stop()
  const [file] = readdirSync(folder)
  const profile = JSON.parse(readFileSync(join(folder, file), 'utf8'))
  const title = `${subject.label}, ${size}: ${cpu.toFixed(0)} µs a request while profiled`
  return renderTable(tableOf(title, profile, since))
}

export async function profile(bench) {
  await bench.fleet.answer({ kind: 'json' })
  for (const subject of bench.subjects) {
    for (const size of bench.sizes) bench.print(await profileOne(bench, subject, size))
  }
}
