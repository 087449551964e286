/** What clients do to a history before they send it. All of these keep its newest step. */
import type { Entry } from './transcripts.ts'

/** A way to make a history shorter. */
export interface Reducer {
  readonly name: string
  reduce(history: readonly Entry[]): readonly Entry[]
  /** Returns its name: a failed property shows it. */
  toString(): string
  /** The agent goes on from the shortened history; else it keeps the whole one and shortens it for each request. */
  readonly forgets?: true
}

type Unit = readonly Entry[]

interface Parts {
  readonly system: readonly Entry[]
  /** What stands before the newest step: an answer with its results, or one thing that somebody said. */
  readonly older: readonly Unit[]
  /** The newest answer and all that stands after it; without one, the last thing that was said. */
  readonly newest: Unit
}

const isAnswer = ([entry]: Unit) => entry?.kind === 'answer'
const isResult = ({ kind }: Entry) => kind === 'result'
const isHuman = ([entry]: Unit) => entry?.kind === 'human'

function partsOf(history: readonly Entry[]): Parts {
  const units: Entry[][] = []
  for (const entry of history) {
    if (entry.kind === 'system') continue
    if (isResult(entry)) units.at(-1)?.push(entry)
    else units.push([entry])
  }
  const last = units.findLastIndex(isAnswer)
  const at = last < 0 || units.slice(last).some(isHuman) ? units.length - 1 : last
  const system = history.filter(({ kind }) => kind === 'system')
  return { system, older: units.slice(0, at), newest: units.slice(at).flat() }
}

/** Makes a reducer, which a failed property shows by its name. */
const named = (name: string, reduce: Reducer['reduce'], forgets?: true): Reducer => ({
  name,
  reduce,
  ...(forgets ? { forgets } : {}),
  toString: () => name,
})

/** Makes a reducer of a function over the parts of a history; it returns all that stands after the system text. */
const reducer = (name: string, shorten: (parts: Parts) => readonly Entry[]): Reducer =>
  named(name, (history) => {
    const parts = partsOf(history)
    return [...parts.system, ...shorten(parts)]
  })

const promptOf = (units: readonly Unit[]) => units.slice(0, Math.max(0, units.findIndex(isAnswer))).flat()
const humansOf = (units: readonly Unit[]) => units.filter(isHuman).flat()
/** The last `count` of a list; none for 0. */
const lastOf = <Item>(list: readonly Item[], count: number): readonly Item[] =>
  list.slice(Math.max(0, list.length - count))

/** The prompt and the last `count` steps. */
export const promptAndLast = (count: number): Reducer =>
  reducer(`prompt + last ${count}`, ({ older, newest }) => [
    ...(older.some(isAnswer) ? promptOf(older) : older.flat()),
    ...lastOf(older.filter(isAnswer), count - 1).flat(),
    ...newest,
  ])

/** All that humans said and the last `count` steps. */
export const humansAndLast = (count: number): Reducer =>
  reducer(`humans + last ${count}`, ({ older, newest }) => [
    ...humansOf(older),
    ...lastOf(older.filter(isAnswer), count - 1).flat(),
    ...newest,
  ])

/** The last `count` steps, without the human's message as soon as there are so many. */
export const lastSteps = (count: number): Reducer =>
  reducer(`last ${count}`, ({ older, newest }) => [...lastOf(older, count - 1).flat(), ...newest])

/** The last `count` messages, never results without their calls; the system text may be cut off too. */
export const lastMessages = (count: number, keepsSystem: boolean): Reducer =>
  named(`last ${count} messages${keepsSystem ? '' : ', no system'}`, (history) => {
    const { system, older, newest } = partsOf(history)
    const all = [...(keepsSystem ? [] : system), ...older.flat(), ...newest]
    const kept = lastOf(all, Math.max(count, newest.length))
    return [...(keepsSystem ? system : []), ...kept.slice(kept.findIndex((entry) => !isResult(entry)))]
  })

/** The first `count` messages or steps and the newest step. */
export const firstAndNewest = (count: number): Reducer =>
  reducer(`first ${count} + newest`, ({ older, newest }) => [...older.slice(0, count).flat(), ...newest])

const sizeOf = (unit: Unit) => JSON.stringify(unit).length

/** What fits in so many characters from the end, as trimmers of frameworks do it; `startsOnHuman` if one is in it. */
export const lastCharacters = (budget: number, startsOnHuman: boolean): Reducer =>
  reducer(`last ${budget} chars${startsOnHuman ? ', from a human' : ''}`, ({ older, newest }) => {
    let left = budget - sizeOf(newest)
    let at = older.length
    while (at > 0) {
      left -= sizeOf(older[at - 1] ?? [])
      if (left < 0) break
      at--
    }
    const kept = older.slice(at)
    const human = startsOnHuman ? kept.findIndex(isHuman) : -1
    return [...kept.slice(Math.max(0, human)).flat(), ...newest]
  })

const withoutCalls = (unit: Unit): Unit =>
  unit.flatMap((entry): Entry[] => {
    if (isResult(entry)) return []
    if (entry.kind !== 'answer' || entry.calls.length === 0) return [entry]
    return entry.text ? [{ ...entry, calls: [], reasoning: undefined }] : []
  })

/** No calls, results and reasoning before the last `count` steps, and no message that is empty then. */
export const prunedCalls = (count: number): Reducer =>
  reducer(`pruned before last ${count}`, ({ older, newest }) => {
    const at = Math.max(0, older.length - (count - 1))
    return [...older.slice(0, at).flatMap(withoutCalls), ...older.slice(at).flat(), ...newest]
  })

const withoutReasoning = (entry: Entry): Entry =>
  entry.kind === 'answer' && entry.reasoning !== undefined ? { ...entry, reasoning: undefined } : entry

/** No reasoning, or only that of the newest step. */
export const prunedReasoning = (all: boolean): Reducer =>
  reducer(`no ${all ? '' : 'old '}reasoning`, ({ older, newest }) => [
    ...older.flat().map(withoutReasoning),
    ...(all ? newest.map(withoutReasoning) : newest),
  ])

const cleared = (entry: Entry, clearsInputs: boolean): Entry => {
  if (entry.kind === 'result') return { ...entry, text: '[Old tool result content cleared]', isCleared: true }
  if (entry.kind !== 'answer' || !clearsInputs) return entry
  return { ...entry, calls: entry.calls.map((call) => ({ ...call, arguments: '{}' })) }
}

/** Placeholders in place of all results but those of the last `count` steps; perhaps in place of their calls' inputs too. */
export const clearedResults = (count: number, clearsInputs = false): Reducer =>
  reducer(`cleared${clearsInputs ? ' with inputs' : ''} before last ${count}`, ({ older, newest }) => {
    const at = Math.max(0, older.length - (count - 1))
    const old = older.slice(0, at).flat()
    return [...old.map((entry) => cleared(entry, clearsInputs)), ...older.slice(at).flat(), ...newest]
  })

const summaryOf = (units: readonly Unit[]) =>
  `Summary of the work so far: ${units.filter(isAnswer).length} steps were done. ${units.flat().length} parts were read.`

/** Where a summary stands. */
export type SummaryPlace = 'user' | 'system' | 'answer' | 'human'

/**
 * A summary in place of what stands before the newest step, made anew as soon as there are more than `every` such
 * steps. `human`: as further lines of the human's message.
 */
export const summarised = (place: SummaryPlace, every: number, keepsHuman: boolean): Reducer => {
  const reduce: Reducer['reduce'] = (history) => {
    const { system, older, newest } = partsOf(history)
    if (older.filter(isAnswer).length <= every) return history
    const text = summaryOf(older)
    const human = humansOf(older).at(-1)
    const humans = keepsHuman && human ? [human] : []
    switch (place) {
      case 'system':
        return [{ kind: 'system', text: `You are a research agent.\n\n${text}` }, ...humans, ...newest]
      case 'user':
        return [...system, ...humans, { kind: 'note', text }, ...newest]
      case 'answer':
        return [...system, ...humans, { kind: 'answer', text, calls: [] }, ...newest]
      case 'human':
        return [...system, { kind: 'human', text: `Find out everything.\n\n${text}` }, ...newest]
    }
  }
  return named(`summary as ${place} each ${every}${keepsHuman ? '' : ', no human'}`, reduce, true)
}

/** A list of tasks in a user's place, written anew for each request, before the last `count` steps. */
export const withTodo = (count: number): Reducer =>
  reducer(`todo before last ${count}`, ({ older, newest }) => {
    const todo: Entry = { kind: 'note', text: `Tasks: ${older.length} done, 3 open.` }
    return [...humansOf(older), todo, ...lastOf(older.filter(isAnswer), count - 1).flat(), ...newest]
  })

/**
 * Any function that keeps the newest step: what happens to each older part, and to the system text, is drawn from
 * `choices`, and may differ from request to request.
 */
export const anyReducer = (choices: readonly number[]): Reducer =>
  named(`any ${choices.join('')}`, (history) => {
    const { system, older, newest } = partsOf(history)
    const shortened = older.flatMap((unit, at): readonly Entry[] => {
      const choice = choices[(at * 7 + older.length * 3) % choices.length] ?? 0
      switch (choice % 6) {
        case 0:
          return unit
        case 1:
          return []
        case 2:
          return withoutCalls(unit)
        case 3:
          return unit.map((entry) => cleared(entry, false))
        case 4:
          return unit.map((entry) => cleared(entry, true)).map(withoutReasoning)
        default:
          return isAnswer(unit) ? [{ kind: 'note', text: `It went so: ${at}.` }] : unit
      }
    })
    return [...system, ...shortened, ...newest]
  })

/** The history as it is. */
export const whole: Reducer = named('whole', (history) => history)

const COUNTS = [1, 2, 3, 4, 5, 6]

/** Every named way, by family. */
export const REDUCERS: Readonly<Record<string, readonly Reducer[]>> = {
  'nothing is cut': [whole],
  'the prompt and the last steps': COUNTS.map(promptAndLast),
  'the human messages and the last steps': COUNTS.map(humansAndLast),
  'the last steps': COUNTS.map(lastSteps),
  'the last messages': [2, 3, 4, 5, 6, 7].flatMap((count) => [lastMessages(count, true), lastMessages(count, false)]),
  'the first parts and the newest step': [1, 2, 3].map(firstAndNewest),
  'the last characters': [500, 1_500].flatMap((budget) => [
    lastCharacters(budget, false),
    lastCharacters(budget, true),
  ]),
  'no old calls and results': [1, 2, 3].map(prunedCalls),
  'no reasoning': [true, false].map(prunedReasoning),
  'placeholders for old results': [1, 2, 3].flatMap((count) => [clearedResults(count), clearedResults(count, true)]),
  'a summary': (['user', 'system', 'answer', 'human'] as const).flatMap((place) => [
    summarised(place, 0, true),
    summarised(place, 0, false),
    summarised(place, 3, true),
    summarised(place, 3, false),
  ]),
  'a list of tasks': [1, 2, 3].map(withTodo),
}
