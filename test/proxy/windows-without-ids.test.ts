/** Agents that keep the last steps of their history, with a provider whose calls have no ids of their own. */
import { describe, expect, it } from 'vitest'
import { afterStep, callModel } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { Answer, ChatMessage } from '../support/provider.ts'
import { mayCall } from '../support/scripts.ts'

const HABITS: readonly (readonly [string, (step: number) => unknown])[] = [
  ['the same', () => ({ query: 'x' })],
  ['two things in turn', (step) => ({ query: step % 2 })],
  ['three things in turn', (step) => ({ query: step % 3 })],
  ['something new each time', (step) => ({ query: step })],
]

/** The id that a provider gives to the call of a step. */
const IDS: readonly (readonly [string, (step: number) => string])[] = [
  ['the same id in each answer', () => 'call_1'],
  ['an empty id', () => ''],
]

interface Way {
  readonly habit: (step: number) => unknown
  readonly idAt: (step: number) => string
  /** How many steps it keeps. */
  readonly kept: number
  readonly stream: boolean
  /** Its harness says something new after each step; else the system text states a time. */
  readonly isTold?: boolean
  /** Its requests name no session. */
  readonly isUnnamed?: boolean
  /** Its first message states how far it is, and its requests name its thread. */
  readonly isStated?: boolean
}

/** Returns the verdicts of a run, whose requests all differ. */
async function verdictsOf({
  habit,
  idAt,
  kept,
  stream,
  isTold = false,
  isUnnamed = false,
  isStated = false,
}: Way): Promise<readonly (string | null)[]> {
  let step = 0
  const script = (request: Parameters<typeof mayCall>[0]): Answer => {
    if (!mayCall(request)) return { text: 'I could not find it.' }
    step++
    return { calls: [{ id: idAt(step), name: 'search', arguments: habit(step) }] }
  }
  const { url } = await startBoth(script, {
    budget: { max_iterations: 25, caution_threshold: 1, warning_threshold: 1 },
  })
  const headers: Record<string, string> = isUnnamed ? {} : { 'x-governor-session': 'mine' }
  if (isStated) headers['thread-id'] = 'one'
  const verdicts: (string | null)[] = []
  let history: ChatMessage[] = []
  while (verdicts.length < 40) {
    const system = { role: 'system', content: `You search. It is ${isTold ? 1 : verdicts.length % 24}:00 o’clock.` }
    const content = isStated ? `Find it. Requests so far: ${verdicts.length}.` : 'Find it.'
    const question: ChatMessage = { role: 'user', content }
    const window = history.slice(-kept * (isTold ? 3 : 2))
    const answer = await callModel(url, [system, question, ...window], { headers, stream })
    verdicts.push(answer.headers.get('x-governor-verdict'))
    if (!answer.message.tool_calls?.length) break
    history = afterStep(history, answer, () => 'Nothing was found about it in all of the places.')
    if (isTold) history.push({ role: 'user', content: `Step ${verdicts.length} is done. Go on.` })
  }
  return verdicts
}

describe.each(HABITS)('an agent that searches for %s', (_, habit) => {
  it.each(
    IDS.flatMap(([ids, idAt]) =>
      [2, 3, 5].flatMap((kept) =>
        [false, true].map((isTold) => ({
          beside: isTold ? 'words of its harness after each step' : 'a clock',
          ids,
          way: { habit, idAt, kept, stream: kept === 3, isTold },
        })),
      ),
    ),
  )(
    'and sends $way.kept steps with $beside gets the verdicts of its whole history where calls have $ids',
    async ({ way }) => {
      const expected = await verdictsOf({ ...way, idAt: (step) => `call_${step}_drawn`, kept: 99 })
      expect(expected.at(-1)).toBe('stop')
      expect(await verdictsOf(way)).toEqual(expected)
    },
  )

  it.each(IDS)(
    'and states its work in its first message gets the verdicts of its whole history where its thread has a name and calls have %s',
    async (_ids, idAt) => {
      const way = { habit, idAt, kept: 2, stream: true, isStated: true }
      const expected = await verdictsOf({ ...way, idAt: (step) => `call_${step}_drawn`, kept: 99 })
      expect(expected.at(-1)).toBe('stop')
      expect(await verdictsOf(way)).toEqual(expected)
    },
  )

  it.each(IDS)(
    'without a session id gets the verdicts of a named one beside a clock where calls have %s',
    async (ids, idAt) => {
      const way = { habit, idAt, kept: 99, stream: ids.startsWith('an') }
      const expected = await verdictsOf(way)
      expect(expected.at(-1)).toBe('stop')
      expect(await verdictsOf({ ...way, isUnnamed: true })).toEqual(expected)
    },
  )
})
