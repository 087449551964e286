/** Where Governor's CPU time goes under load, by V8's own profiler. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { SourceMap } from 'node:module'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { renderTable } from './report.mjs'
import { sharedTime } from './stalls.mjs'

const REQUESTS = { talk: 20_000, '1KB': 15_000, '32KB': 8_000, steps: 9_000 }
const FEW_REQUESTS = 1_000
const INTERVAL_US = 250
/** Between two samples so far apart the machine stood still: that is no function's doing. */
const STALL_US = 20 * INTERVAL_US
const AGENTS = 8
const US_PER_MS = 1000
const WARMUP = { size: 'steps', agents: AGENTS, requests: 10_000 }
const TOP = 30
/** A regular expression has its whole source for a name. */
const MAX_NAME = 40
const ROOT = join(import.meta.dirname, '..')

const maps = new Map()

/** What a built file was made of; `undefined` for files that stand as they are. */
function mapOf(file) {
  if (!maps.has(file)) {
    const name = `${file}.map`
    maps.set(file, existsSync(name) ? new SourceMap(JSON.parse(readFileSync(name, 'utf8'))) : undefined)
  }
  return maps.get(file)
}

/** Where a function stands in its source. */
function placeOf({ url, lineNumber, columnNumber }) {
  if (!url.startsWith('file:')) return url
  const file = fileURLToPath(url)
  const { originalSource, originalLine } = mapOf(file)?.findEntry(lineNumber, columnNumber) ?? {}
  const path = originalSource ? resolve(dirname(file), originalSource) : file
  return `${path.replace(`${ROOT}/`, '')}:${(originalSource ? originalLine : lineNumber) + 1}`
}

/** Microseconds by function from `since` on (shared time): `self`, and `whole` with all that it calls. */
function timesOf({ nodes, samples, timeDeltas, startTime }, since) {
  const names = new Map()
  const parents = new Map()
  for (const { id, callFrame, children = [] } of nodes) {
    names.set(id, `${callFrame.functionName || '(anonymous)'}\t${placeOf(callFrame)}`)
    for (const child of children) parents.set(child, id)
  }
  // The function and those that called it, each once however often it calls itself.
  const callers = new Map()
  const callersOf = (id) => {
    if (!callers.has(id)) {
      const found = new Set()
      for (let at = id; at !== undefined; at = parents.get(at)) found.add(names.get(at))
      callers.set(id, [...found])
    }
    return callers.get(id)
  }
  const self = new Map()
  const whole = new Map()
  const add = (times, name, time) => times.set(name, (times.get(name) ?? 0) + time)
  let now = startTime
  samples.forEach((id, at) => {
    now += timeDeltas[at]
    if (now < since * US_PER_MS || timeDeltas[at] > STALL_US || names.get(id).startsWith('(idle)')) return
    add(self, names.get(id), timeDeltas[at])
    for (const name of callersOf(id)) add(whole, name, timeDeltas[at])
  })
  return { self, whole }
}

function tableOf(title, times, busy) {
  const top = [...times].sort(([, a], [, b]) => b - a).slice(0, TOP)
  const rows = top.map(([name, time]) => {
    const [functionName, place] = name.split('\t')
    const shown = functionName.slice(0, MAX_NAME)
    return [(time / US_PER_MS).toFixed(0), `${((time / busy) * 100).toFixed(1)} %`, shown, place]
  })
  return { title, columns: ['ms', 'share', 'function', 'place'], rows }
}

function isOurs(name) {
  return name.includes('\tsrc/')
}

/** Loads one process of a subject with one size and prints its functions by self time. */
async function profileOne(bench, subject, size) {
  const folder = join(bench.fleet.folder, `profile-${subject.name}-${size}`)
  const process = await bench.fleet.startSubject(subject, {
    nodeFlags: ['--cpu-prof', '--cpu-prof-interval', INTERVAL_US, '--cpu-prof-dir', folder],
  })
  await bench.fleet.load('saturate', process, WARMUP)
  const load = { size, agents: size === 'growing' ? 1 : AGENTS, requests: REQUESTS[size] ?? FEW_REQUESTS }
  await bench.fleet.load('saturate', process, load)
  const since = sharedTime()
  const { cpu } = await bench.fleet.load('saturate', process, load)
  await process.stop()
  const [file] = readdirSync(folder)
  const profile = JSON.parse(readFileSync(join(folder, file), 'utf8'))
  const title = `${subject.label}, ${size}: ${cpu.toFixed(0)} µs a request while profiled`
  const { self, whole } = timesOf(profile, since)
  const busy = [...self.values()].reduce((sum, time) => sum + time, 0)
  const ours = new Map([...whole].filter(([name]) => isOurs(name)))
  return [
    renderTable(tableOf(`${title}, by function`, self, busy)),
    renderTable(tableOf('Its own functions with all that they call', ours, busy)),
  ].join('\n')
}

export async function profile(bench) {
  await bench.fleet.answer({ kind: 'json' })
  for (const subject of bench.subjects) {
    for (const size of bench.sizes) bench.print(await profileOne(bench, subject, size))
  }
}
