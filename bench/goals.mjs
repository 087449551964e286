/** What Governor is to reach, held against what was measured. */
import { costRatio, differences, median, ratios, spread } from './statistics.mjs'

/** By kind of body; `talk` is relayed unguarded. */
const TO_PIPE = { talk: 1.15, '1KB': 1.6, '32KB': 2.4, steps: 2.3, growing: 2.1, '256KB': 1.6, '1MB': 1.6 }
const TO_OTHER = 0.55
const PORTKEY_TO_GOVERNOR = 9
const NOTICE_TO_NONE = 1.2
const EVENT_TO_PIPE = 0.9
const FIRST_TO_PIPE = 1.8
const LOOP_P99_MS = 20
const PATTERN_MS = 20
const LAST_ANSWER_MS = 200
const PEAK_MB = 180
const IDLE_MB = 110
const START_MS = 600
const START_TO_FASTIFY = 1
/** What one of the first thousand requests costs, beside one after ten thousand more. */
const FIRST_TO_LATER = 3
/** What Redis on the same machine adds to a guarded request. */
const REDIS_ADDED_US = 600
/** By size: what it adds to the CPU time does not grow with the conversation. */
const REDIS_CPU_US = { '1KB': 60, steps: 80, '256KB': 150 }
const REDIS_TIME_SIZE = '32KB'

/** A goal and what came out, in every round; `value` is undefined where it was not measured. */
function goal(name, values, limit, { isFloor = false, unit = '' } = {}) {
  const value = values && median(values)
  return {
    name,
    value,
    isMet: isFloor ? value >= limit : value <= limit,
    measured: values ? `${spread(values, unit ? 0 : 2)}${unit}` : '',
    wanted: `${isFloor ? '≥' : '≤'} ${limit}${unit}`,
  }
}

function cpuRatio(saturation, size, name, other) {
  const figures = saturation?.[size] ?? {}
  return figures[name] && figures[other] ? costRatio(figures[name].cpu, figures[other].cpu) : undefined
}

function cpuGoal(name, { value, text } = {}, limit, isFloor = false) {
  const isMet = isFloor ? value >= limit : value <= limit
  return { name, value, isMet, measured: text ?? '', wanted: `${isFloor ? '≥' : '≤'} ${limit}` }
}

function saturationGoals({ saturation }) {
  const sizes = Object.keys(TO_PIPE)
  const perSize = (name, subject, other, limitOf, isFloor) =>
    sizes.map((size) => cpuGoal(`${name}, ${size}`, cpuRatio(saturation, size, subject, other), limitOf(size), isFloor))
  return [
    ...perSize('CPU ÷ node:http pipe', 'governor', 'pipe', (size) => TO_PIPE[size]),
    ...perSize('Portkey’s CPU ÷ Governor’s', 'portkey', 'governor', () => PORTKEY_TO_GOVERNOR, true),
    ...perSize('CPU ÷ the version in BENCH_OTHER', 'governor', 'governor-other', () => TO_OTHER),
    ...perSize('CPU with a notice ÷ without', 'governor-notice', 'governor', () => NOTICE_TO_NONE),
  ]
}

/** What a store in Redis adds to the figure of one in memory. */
function redisGoals({ latency, saturation }) {
  const added = (figures, figure) =>
    figures?.['governor-redis'] && figures.governor
      ? differences(figures['governor-redis'][figure], figures.governor[figure])
      : undefined
  const unit = ' µs'
  const time = added(latency?.[REDIS_TIME_SIZE], 'p50')
  return [
    goal(`time that Redis adds, median, ${REDIS_TIME_SIZE}`, time, REDIS_ADDED_US, { unit }),
    ...Object.entries(REDIS_CPU_US).map(([size, limit]) =>
      goal(`CPU that Redis adds, ${size}`, added(saturation?.[size], 'cpu'), limit, { unit }),
    ),
  ]
}

function addedRatios({ streams }, figure) {
  if (!streams?.governor || !streams.pipe || !streams.direct) return undefined
  const added = (name) => differences(streams[name][figure], streams.direct[figure])
  return ratios(added('governor'), added('pipe'))
}

/** All goals, those that were not measured included. */
export function goalsOf(results) {
  const { loop, footprint, patterns, start, 'last-answer': lastAnswer } = results
  const loopDelay = loop?.governor?.p99
  const heldUp = lastAnswer?.text && [Math.max(...Object.values(lastAnswer).map(median))]
  const started = (figure) => footprint?.governor?.[figure]
  return [
    ...saturationGoals(results),
    goal('time added to an event ÷ node:http pipe', addedRatios(results, 'event50'), EVENT_TO_PIPE),
    goal('time added to the first event ÷ node:http pipe', addedRatios(results, 'first50'), FIRST_TO_PIPE),
    goal('event loop delay p99, 4 MB × 20/s', loopDelay, LOOP_P99_MS, { unit: ' ms' }),
    goal('slowest regular expression on its worst text', patterns?.[0] && [patterns[0].ms], PATTERN_MS, {
      unit: ' ms',
    }),
    goal('event loop away during a last answer of 400 KB', heldUp, LAST_ANSWER_MS, { unit: ' ms' }),
    goal('peak memory, 32 × 1 MB in flight', started('peak'), PEAK_MB, { unit: ' MB' }),
    goal('memory when idle', started('idle'), IDLE_MB, { unit: ' MB' }),
    ...redisGoals(results),
    goal('from the start to the first answer', started('startup'), START_MS, { unit: ' ms' }),
    cpuGoal(
      'CPU of a start ÷ Fastify that only answers /health',
      start?.governor && costRatio(start.governor.startCpu, start['fastify-bare'].startCpu),
      START_TO_FASTIFY,
    ),
    cpuGoal(
      'CPU of the first 1,000 requests ÷ later ones',
      start?.governor && costRatio(start.governor.first, start.governor.later),
      FIRST_TO_LATER,
    ),
  ]
}
