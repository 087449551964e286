/** For how long each regular expression of Governor holds the event loop on the text that takes it longest. */
import { patternsOf } from '../../scripts/patterns.mjs'
import { attacksOn } from '../attacks.mjs'

const MB = 1_000_000
const ROUNDS = 3
const SHOWN = 12

/**
 * The most characters that expressions see, by the path of their file; all others are timed on 1 MB. 0: they see only what the
 * operator or the program itself wrote.
 */
const BOUNDS = [
  { files: /^(?:config|demo)\/|^core\/(?:budget\/budget-notices|harness\/match)/, most: 0 },
  // Fields of sessions, which are cut; rows of Redis.
  { files: /^(?:cli|store|telemetry)\//, most: 65_536 },
  // MAX_HEAD of http/server.ts: targets and header fields.
  { files: /^(?:proxy(?!\/overflow)|http|ops)\/|^dialect\/(?:shared\/dialect-members|messages\/api)/, most: 65_536 },
  // HEAD and TAIL of overflow/text.ts.
  { files: /^overflow\/|^proxy\/overflow\/model-list/, most: 12_289 },
  // MAX_LENGTH of core/json-object.ts: arguments of calls.
  { files: /^core\/loop\/tool-call/, most: 65_536 },
  // MAX_MASKED of core/loop/tool-result.ts.
  { files: /^core\/loop\/tool-result/, most: 131_072 },
  // MAX_TEXT of core/conversation/label.ts.
  { files: /^core\/conversation\/label/, most: 65_536 },
]

function mostOf(file) {
  return BOUNDS.find(({ files }) => files.test(file))?.most ?? MB
}

/** CPU time in ms, as the clock goes on while the machine does other things. */
function timeOf(pattern, text) {
  const began = process.cpuUsage()
  text.replace(pattern, '')
  const { user, system } = process.cpuUsage(began)
  return (user + system) / 1_000
}

/** The longest time over all texts, in ms; for each text the shortest of several, as garbage may be collected meanwhile. */
function worstOf({ file, source, flags }) {
  const most = mostOf(file)
  const everywhere = new RegExp(source, flags.includes('g') ? flags : `${flags}g`)
  const one = new RegExp(source, flags.replace('g', ''))
  let worst = { file, source, most, ms: 0, text: '' }
  for (const text of most > 0 ? attacksOn({ source, flags }, most) : []) {
    // Only what the program does itself: it replaces or finds all matches where the expression is global, else the first.
    const times = Array.from({ length: ROUNDS }, () => timeOf(flags.includes('g') ? everywhere : one, text))
    const ms = Math.min(...times)
    if (ms > worst.ms) worst = { ...worst, ms, text: text.slice(0, 24) }
  }
  return worst
}

/** All expressions that meet foreign text, the slowest first. */
export async function run() {
  const patterns = await patternsOf()
  for (const { files } of BOUNDS)
    if (!patterns.some(({ file }) => files.test(file))) throw new Error(`no file with an expression matches ${files}`)
  return patterns
    .filter(({ file }) => mostOf(file) > 0)
    .map(worstOf)
    .sort((one, other) => other.ms - one.ms)
}

export function table(figures) {
  return {
    title: `The slowest of ${figures.length} regular expressions, each on the text that takes it longest`,
    columns: ['file', 'expression', 'characters', 'text repeats', 'ms'],
    rows: figures
      .slice(0, SHOWN)
      .map(({ file, source, most, text, ms }) => [
        file,
        `\`${source.slice(0, 40).replaceAll('|', '\\|')}\``,
        String(most),
        JSON.stringify(text).replaceAll('|', '\\|'),
        ms.toFixed(1),
      ]),
  }
}
