/** The notices for a model that repeats itself, and how Governor recognises its own notices. */
import { LIMITS, METERS } from '../budget/meters.ts'
import { type Loop, PATTERNS } from './patterns.ts'

/** Seconds to wait before polling again: by the number of the advice, the last for all further ones. */
export const BACK_OFF_SECONDS: readonly number[] = [5, 10, 30, 60]

/** How every notice about a loop begins. */
const REPEATING = 'You appear to be repeating the same action'

/** How the result of a blocked call begins. */
const BLOCKED = '[LOOP GUARD] Blocked: '

const BACK_OFF = 'Before you call it again, check whether its precondition is met'

/** How the texts end that ask for a final answer. */
const STOPPED = 'without calling any more tools.'

/** How each notice of Governor begins and ends, about loops, budgets and the ends of runs. */
export const NOTICES: readonly { readonly text: string; readonly end: string }[] = [
  { text: REPEATING, end: "'.)" },
  { text: BACK_OFF, end: 'before polling again.' },
  { text: BLOCKED, end: 'or give your final answer.' },
  ...LIMITS.flatMap((name) => [
    { text: `[BUDGET: ${METERS[name].word} `, end: ']' },
    { text: `You've reached the ${METERS[name].limit.noun} limit of this run.`, end: STOPPED },
  ]),
  { text: '[budget: ', end: ']' },
  { text: '[CONTEXT: ', end: ']' },
  { text: "You've been repeating the same action without progress.", end: STOPPED },
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
  const description = `${REPEATING}${text} (Repeated: '${[...new Set(tools)].join("', '")}'.)`
  if (backOff === undefined) return description
  const advice = `If you are waiting for something, wait ${backOff} seconds before polling again.`
  return `${description} ${BACK_OFF} and what differs from last time. ${advice}`
}

/** Returns what takes the place of a blocked call's result. `count`: how often the call was made before. */
export function blockText(tool: string, count: number): string {
  const reason = `'${tool}' was called ${count} times with identical arguments and results.`
  return `${BLOCKED}${reason} This call was not executed. Try something different or give your final answer.`
}

/** The result of a call that was allowed, but stood in one response with a blocked call. */
export const NOT_EXECUTED = '[LOOP GUARD] This call was not executed.'

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
