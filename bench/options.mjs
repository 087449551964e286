/** The command line. */
import { parseArgs } from 'node:util'
import { sizes as SIZES } from './measures/saturation.mjs'
import { SUBJECTS } from './subjects.mjs'

export const MEASURES = [
  'saturation',
  'latency',
  'streams',
  'footprint',
  'start',
  'workers',
  'loop',
  'hostile',
  'patterns',
  'last-answer',
]

const HELP = `Usage: node bench/run.mjs [flags]

  --quick             CPU time on bodies of five kinds, beside a plain pipe and undici: two minutes
  --only MEASURES     of ${MEASURES.join(', ')}
  --subjects NAMES    of ${SUBJECTS.map(({ name }) => name).join(', ')}
  --sizes SIZES       of ${SIZES.join(', ')}
  --rounds N          how often every subject is measured (default: 5)
  --profile           a CPU profile of Governor under load, for each of the subjects and sizes
  --no-write          leave bench/RESULTS.md as it is; so do all of the above but --rounds
  --help              this text
`

const QUICK = {
  only: ['saturation'],
  subjects: ['governor', 'governor-other', 'pipe', 'undici'],
  sizes: ['talk', '1KB', '32KB', 'steps', 'growing'],
  rounds: 7,
}
const FULL = {
  only: MEASURES,
  subjects: SUBJECTS.map(({ name }) => name),
  sizes: SIZES,
  rounds: 5,
}
/** Flags with which not everything is measured, or nothing is to be written. */
const PARTIAL = ['quick', 'only', 'subjects', 'sizes', 'profile', 'no-write']
const PROFILE = { ...FULL, subjects: ['governor'], sizes: ['talk', '1KB', 'steps'] }

function listOf(text, known, fallback) {
  if (text === undefined) return fallback
  const names = text.split(',')
  const unknown = names.find((name) => !known.includes(name))
  if (unknown !== undefined) throw new Error(`${unknown}: expected some of ${known.join(', ')}`)
  return names
}

function countOf(text, fallback) {
  if (text === undefined) return fallback
  if (!/^[1-9]\d{0,3}$/.test(text)) throw new Error(`--rounds ${text}: expected a number from 1 on`)
  return Number(text)
}

/** @throws an Error that says what is wrong. */
export function readOptions(args) {
  const { values } = parseArgs({
    args,
    options: {
      quick: { type: 'boolean' },
      only: { type: 'string' },
      subjects: { type: 'string' },
      sizes: { type: 'string' },
      rounds: { type: 'string' },
      profile: { type: 'boolean' },
      'no-write': { type: 'boolean' },
      help: { type: 'boolean' },
    },
  })
  const defaults = values.profile ? PROFILE : values.quick ? QUICK : FULL
  return {
    help: values.help ? HELP : undefined,
    isProfile: values.profile ?? false,
    // What was measured in part must not stand where whole results stand.
    isWritten: !PARTIAL.some((name) => values[name]),
    only: listOf(values.only, MEASURES, defaults.only),
    subjects: listOf(values.subjects, FULL.subjects, defaults.subjects),
    sizes: listOf(values.sizes, SIZES, defaults.sizes),
    rounds: countOf(values.rounds, defaults.rounds),
  }
}
