/** Measures Governor beside other proxies: see README.md. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { startFleet } from './fleet.mjs'
import { goalsOf } from './goals.mjs'
import { describeMachine, describeVersions } from './machine.mjs'
import * as footprint from './measures/footprint.mjs'
import * as hostile from './measures/hostile.mjs'
import * as lastAnswer from './measures/last-answer.mjs'
import * as latency from './measures/latency.mjs'
import * as loop from './measures/loop.mjs'
import * as patterns from './measures/patterns.mjs'
import * as saturation from './measures/saturation.mjs'
import * as start from './measures/start.mjs'
import * as streams from './measures/streams.mjs'
import * as workers from './measures/workers.mjs'
import { readOptions } from './options.mjs'
import { profile } from './profile.mjs'
import { renderFacts, renderGoals, renderResults, renderTable } from './report.mjs'
import { SUBJECTS } from './subjects.mjs'

const RUNS = {
  saturation,
  latency,
  streams,
  footprint,
  start,
  workers,
  loop,
  hostile,
  patterns,
  'last-answer': lastAnswer,
}
const RESULTS = join(import.meta.dirname, 'RESULTS.md')

function print(text) {
  process.stdout.write(`${text}\n`)
}

/** The command as anybody would type it: folders are left to the reader. */
function commandOf(args) {
  const peers = process.env.BENCH_PEERS ? 'BENCH_PEERS=… ' : ''
  return `${peers}npm run bench${args.length > 0 ? ` -- ${args.join(' ')}` : ''}`
}

/** A measure of one size, or of all that it is about: its figures, and the table that was shown of them. */
async function measureOne(bench, name, size) {
  bench.progress(size ? `${name}, ${size}` : name)
  const figures = await RUNS[name].run(bench, size)
  const table = RUNS[name].table(figures, bench, size)
  print(renderTable(table))
  return { figures, table }
}

/** Figures by measure, and by size where a measure is made for each. */
async function measure(bench, only) {
  const results = {}
  const tables = []
  for (const name of only) {
    const { sizes } = RUNS[name]
    for (const size of sizes ? sizes.filter((one) => bench.sizes.includes(one)) : [undefined]) {
      const { figures, table } = await measureOne(bench, name, size)
      results[name] = size ? { ...results[name], [size]: figures } : figures
      tables.push(table)
    }
  }
  return { results, tables }
}

async function compare(bench, options, facts) {
  print(renderFacts(facts))
  const { results, tables } = await measure(bench, options.only)
  const goals = goalsOf(results)
  if (goals.some(({ value }) => value !== undefined)) print(renderGoals(goals))
  if (options.isWritten) writeFileSync(RESULTS, renderResults(facts, goals, tables))
}

async function run(options, args) {
  const wanted = SUBJECTS.filter(({ name }) => options.subjects.includes(name))
  const facts = {
    date: new Date().toISOString().slice(0, 10),
    machine: describeMachine(),
    versions: describeVersions(),
    command: commandOf(args),
    missing: wanted.filter(({ missing }) => missing),
  }
  const fleet = await startFleet()
  const bench = {
    fleet,
    subjects: wanted.filter(({ missing }) => !missing),
    sizes: options.sizes,
    rounds: options.rounds,
    print,
    progress: (text) => process.stderr.write(`… ${text}\n`),
  }
  try {
    if (options.isProfile) await profile(bench)
    else await compare(bench, options, facts)
  } finally {
    await fleet.stop()
  }
}

async function main(args) {
  const options = readOptions(args)
  if (options.help) print(options.help)
  else await run(options, args)
}

main(process.argv.slice(2)).catch((error) => {
  process.stderr.write(`bench: ${error.message}\n`)
  process.exit(1)
})
