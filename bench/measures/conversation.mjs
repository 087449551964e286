/** A conversation that grows to 1 MB, request by request, against JSON.parse of every body of it. */
import { join } from 'node:path'
import { ask, startHelper, stop } from '../processes.mjs'
import { ratios, spread } from '../statistics.mjs'
import { processesOf } from './rounds.mjs'

const SUBJECTS = ['governor', 'governor-other', 'governor-redis', 'pipe', 'undici', 'parse']
const CONVERSATION = { bytes: 1_048_576, turns: 100 }
/** Conversations before anything is measured. */
const WARMUP = 15
const PARSER = join(import.meta.dirname, '..', 'parser.mjs')

/** The CPU time of each conversation, in ms. */
function totals(conversations) {
  return conversations.map((times) => times.reduce((sum, time) => sum + time, 0) / 1000)
}

/** CPU time of the whole conversation in ms, by round, by subject, and of JSON.parse alone under `JSON.parse`. */
export async function run(bench) {
  await bench.fleet.answer({ kind: 'json' })
  const processes = await processesOf(bench, subjectsOf(bench))
  const { child: parser } = await startHelper('proxy', [PARSER])
  const times = { 'JSON.parse': [] }
  for (const { subject } of processes) times[subject.name] = []
  try {
    // In turns, as what else the machine does is for all to bear.
    for (let round = -WARMUP; round < bench.rounds; round++) {
      const parsed = await ask(parser, { ...CONVERSATION, conversations: 1 })
      if (round >= 0) times['JSON.parse'].push(...parsed)
      for (const process of processes) {
        const measured = await bench.fleet.load('converse', process, { ...CONVERSATION, conversations: 1 })
        if (round >= 0) times[process.subject.name].push(...measured)
      }
    }
  } finally {
    await stop(parser)
  }
  return Object.fromEntries(Object.entries(times).map(([name, conversations]) => [name, totals(conversations)]))
}

function subjectsOf(bench) {
  return bench.subjects.filter(({ name }) => SUBJECTS.includes(name))
}

export function table(figures, bench) {
  const parse = figures['JSON.parse']
  const rows = subjectsOf(bench).map(({ name, label }) => [name, label])
  return {
    title: `A conversation of ${CONVERSATION.turns} requests to 1 MB`,
    columns: ['subject', 'CPU ms', '÷ JSON.parse'],
    rows: [['JSON.parse', 'JSON.parse of every body, no proxy'], ...rows].map(([name, label]) => [
      label,
      spread(figures[name]),
      spread(ratios(figures[name], parse), 2),
    ]),
  }
}
