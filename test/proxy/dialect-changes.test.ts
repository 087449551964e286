/** An agent that changes its API in the middle of a run, as one that falls back to another provider. */
import { expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import {
  entryOf,
  human,
  keyOf,
  resultsOf,
  type Seen,
  SYSTEM,
  sendTranscript,
  tableOf,
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
