/** What Governor is to reach, held against what was measured. */
import { difference, median, medianOfRounds, ratio } from './statistics.mjs'

const TO_PIPE = { '1KB': 1.0, '32KB': 1.4, '256KB': 1.9, '1MB': 2.0 }
const PORTKEY_TO_GOVERNOR = { '1KB': 20, '32KB': 15, '256KB': 15, '1MB': 12 }
const NOTICE_TO_NONE = 1.1
const CONVERSATION_TO_PARSE = 0.3
const EVENT_TO_PIPE = 1.1
const FIRST_TO_PIPE = 2
const LOOP_P99_MS = 20
const PEAK_MB = 250

/** A goal and what came out; `value` is undefined where it was not measured. */
function goal(name, value, limit, { isFloor = false, unit = '' } = {}) {
  return {
    name,
    value,
    isMet: isFloor ? value >= limit : value <= limit,
    measured: value === undefined ? '' : `${value.toFixed(unit ? 0 : 2)}${unit}`,
    wanted: `${isFloor ? '≥' : '≤'} ${limit}${unit}`,
  }
}

function cpuRatio(saturation, size, name, other) {
  const figures = saturation?.[size] ?? {}
  return figures[name] && figures[other] ? ratio(figures[name].cpu, figures[other].cpu) : undefined
}

function saturationGoals({ saturation }) {
  const sizes = Object.keys(TO_PIPE)
  const perSize = (name, subject, other, limitOf, options) =>
    sizes.map((size) =>
      goal(`${name}, ${size}`, cpuRatio(saturation, size, subject, other), limitOf(size), options),
    )
  return [
    ...perSize('CPU ÷ node:http pipe', 'governor', 'pipe', (size) => TO_PIPE[size]),
    ...perSize('Portkey’s CPU ÷ Governor’s', 'portkey', 'governor', (size) => PORTKEY_TO_GOVERNOR[size], {
      isFloor: true,
    }),
    ...perSize('CPU with a notice ÷ without', 'governor-notice', 'governor', () => NOTICE_TO_NONE),
  ]
}

function addedRatio({ streams }, figure) {
  if (!streams?.governor || !streams.pipe || !streams.direct) return undefined
  const added = (name) =>
    streams[name][figure].map((value, round) => difference([value], [streams.direct[figure][round]]))
  return medianOfRounds(added('governor'), added('pipe'), (ours, theirs) => ours / theirs)
}

/** All goals, those that were not measured included. */
export function goalsOf(results) {
  const { conversation, loop, footprint } = results
  const toParse = conversation?.governor && conversation.governor / conversation['JSON.parse']
  const loopDelay = loop?.governor && median(loop.governor.p99)
  const peak = footprint?.governor && median(footprint.governor.peak)
  return [
    ...saturationGoals(results),
    goal('CPU of a growing conversation ÷ JSON.parse of every body', toParse, CONVERSATION_TO_PARSE),
    goal('time added to an event ÷ node:http pipe', addedRatio(results, 'event50'), EVENT_TO_PIPE),
    goal('time added to the first event ÷ node:http pipe', addedRatio(results, 'first50'), FIRST_TO_PIPE),
    goal('event loop delay p99, 4 MB × 20/s', loopDelay, LOOP_P99_MS, { unit: ' ms' }),
    goal('peak memory, 32 × 1 MB in flight', peak, PEAK_MB, { unit: ' MB' }),
  ]
}
