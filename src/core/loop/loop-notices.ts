/** The notices for a model that repeats itself, and how Governor recognises its own notices. */
import { ALL_LIMITS, METERS } from '../budget/meters.ts'
import { SCOPES } from '../budget/scopes.ts'
import { GUARD_REASONS, type Notice, STOPPED } from '../terminal.ts'
import { type Loop, PATTERNS } from './patterns.ts'

/** Seconds to wait before polling again: by the number of the advice, the last for all further ones. */
export const BACK_OFF_SECONDS: readonly number[] = [5, 10, 30, 60]

const [REPEATING, BACK_OFF, BLOCKED] = GUARD_REASONS.loop_guard.notices

/** How each notice of Governor begins and ends: of guards, about budgets, and about the ends of runs. */
export const NOTICES: readonly Notice[] = [
  ...Object.values<{ readonly notices: readonly Notice[] }>(GUARD_REASONS).flatMap(({ notices }) => notices),
  ...ALL_LIMITS.flatMap((name) => [
    { text: `[BUDGET: ${METERS[name].word} `, end: ']' },
    ...Object.values(SCOPES).map(({ limit }) => {
      return { text: `You've reached ${limit(METERS[name].limit.noun)}.`, end: STOPPED }
    }),
  ]),
  { text: '[budget: ', end: ']' },
  { text: '[CONTEXT: ', end: ']' },
  { text: 'An operator has stopped this run.', end: STOPPED },
  { text: 'This is the last call: give your answer,', end: 'and say what is unfinished.' },
]

/** The most paragraphs that are removed from one result: more than Governor ever adds. */
const MAX_NOTICES = 4

/** Returns the notice about a loop. `backOff`: seconds to wait before polling again, if that is advised. */
export function loopNotice(
  { pattern, count, span }: Pick<Loop, 'pattern' | 'count' | 'span'>,
  tools: readonly string[],
  backOff: number | undefined,
): string {
  const { notice, noticeBetween = notice } = PATTERNS[pattern]
  const text = (span > count ? noticeBetween : notice).replace('{count}', String(count)).replace('{span}', String(span))
  const description = `${REPEATING.text}${text} (Repeated: '${[...new Set(tools)].join("', '")}'.)`
  if (backOff === undefined) return description
  const advice = `If you are waiting for something, wait ${backOff} seconds before polling again.`
  return `${description} ${BACK_OFF.text} and what differs from last time. ${advice}`
}

/** Returns what takes the place of a blocked call's result. `count`: how often the call was made before. */
export function blockText(tool: string, count: number): string {
  const reason = `'${tool}' was called ${count} times with identical arguments and results.`
  return `${BLOCKED.text}${reason} This call was not executed. Try something different or give your final answer.`
}

/** Returns the answer of a run that ended in a loop, if the model gave none. */
export function fallbackText(tool: string, count: number): string {
  return `(Stopped: '${tool}' was called ${count} times with identical arguments and results)`
}

/** Returns a tool result without the notices that Governor added at its end, each a paragraph. */
export function withoutNotices(result: string): string {
  let end = result.length
  for (let removed = 0; removed < MAX_NOTICES; removed++) {
    const paragraph = result.lastIndexOf('\n\n', end - 1)
    if (paragraph === -1 || !NOTICES.some(({ text }) => result.startsWith(text, paragraph + 2))) break
    end = paragraph
  }
  return result.slice(0, end)
}
