/** An agent that changes its API in the middle of a run, as one that falls back to another provider. */
import { describe, expect, it } from 'vitest'
import { startBeforeModel, startBoth } from '../support/governor.ts'
import { callResponses, type Item, runResponses, TOOL } from '../support/responses-agent.ts'
import { repeatsUntilBlocked } from '../support/scripts.ts'
import {
  entryOf,
  human,
  keyOf,
  resultsOf,
  type Seen,
  SYSTEM,
  sendTranscript,
  tableOf,
  verdictsOf,
} from '../support/shortened-agent.ts'
import type { Entry } from '../support/transcripts.ts'

it.each([1, 2, 5])(
  'an agent that loops ends, although its API is another one after each %i requests',
  async (every) => {
    const { url } = await startBeforeModel({})
    const key = keyOf({ loops: true, isStubborn: true })
    let history: readonly Entry[] = [SYSTEM, human('Find out everything.')]
    const seen: Seen[] = []
    while (seen.length < 14 && seen.at(-1)?.reason === undefined) {
      const dialect = Math.floor(seen.length / every) % 2 === 0 ? 'chat' : 'responses'
      const one = await sendTranscript({ url, dialect, stream: false, key, session: 'one' }, history)
      seen.push(one)
      const answer = entryOf(one.answer, seen.length)
      history = [...history, answer, ...resultsOf(answer)]
    }
    expect(seen.at(-1)?.reason, tableOf(seen)).toBe('loop_guard')
  },
)

const FROM_ONE_TO_ANOTHER = [
  ['chat', 'responses'],
  ['responses', 'chat'],
] as const

describe.each(FROM_ONE_TO_ANOTHER)('an agent that loops and changes from %s to %s', (first, second) => {
  it('is warned and blocked as if it had not, whenever that is', async () => {
    for (let change = 2; change < 8; change++) {
      const { url } = await startBeforeModel({})
      const key = keyOf({ loops: true })
      let history: readonly Entry[] = [SYSTEM, human('Find out everything.')]
      const seen: Seen[] = []
      while (seen.length < 7) {
        const dialect = seen.length + 1 < change ? first : second
        const one = await sendTranscript({ url, dialect, stream: false, key, session: 'one' }, history)
        seen.push(one)
        const answer = entryOf(one.answer, seen.length)
        history = [...history, answer, ...resultsOf(answer)]
      }
      const verdicts = verdictsOf(seen).map((verdict) => verdict.split(' ')[0])
      expect(verdicts, `${change}\n${tableOf(seen)}`).toEqual([
        'allow',
        'allow',
        'allow',
        'warn',
        'allow',
        'warn',
        'block',
      ])
    }
  })
})

it('an agent that loops is blocked at the same call if it continues by id after whole histories', async () => {
  for (const change of [3, 5]) {
    const { url } = await startBoth(
      repeatsUntilBlocked({ calls: [{ name: 'search', arguments: { query: 'the same' } }] }, () => ({ text: 'Done.' })),
    )
    const { steps } = await runResponses(url, 'Go.', { body: { store: true }, max: change - 1 })
    let last = steps.at(-1)
    while (last?.headers.get('x-governor-verdict') !== 'block') {
      expect(steps.length).toBeLessThan(8)
      const input = last?.calls.map(({ call_id }): Item => {
        return { type: 'function_call_output', call_id, output: 'found nothing new' }
      })
      last = await callResponses(url, { input, previous_response_id: last?.response['id'] })
      steps.push(last)
    }
    expect(steps.length).toBe(7)
  }
})

it('an agent that loops is blocked at the same call if its tools speak of the end of a response', async () => {
  for (const word of ['begun', 'response.completed']) {
    const { url } = await startBoth(
      repeatsUntilBlocked({ calls: [{ name: 'search', arguments: { query: 'the same' } }] }, () => ({ text: 'Done.' })),
    )
    const tools = [{ ...TOOL, parameters: { type: 'object', properties: { of: { enum: [word] } } } }]
    const { steps } = await runResponses(url, 'Go.', { stateful: true, stream: true, max: 12, body: { tools } })
    const verdicts = steps.map(({ headers }) => headers.get('x-governor-verdict'))
    expect(verdicts.indexOf('block'), `${word}: ${verdicts}`).toBe(6)
  }
})
