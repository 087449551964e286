import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Hash } from '../../../src/core/hash.ts'
import { addToHistory, type CallHistory, EMPTY_HISTORY } from '../../../src/core/loop/call-history.ts'
import { hashResult } from '../../../src/core/loop/result-hash.ts'
import { maskVolatile } from '../../../src/core/loop/result-mask.ts'
import { resultWithText, type TranscriptResult } from '../../../src/core/loop/tool-result.ts'
import { POLICY } from './loop-story.ts'

const CALL = 'call' as Hash

const given = (text: string): TranscriptResult => resultWithText({ callId: '', text })

/** Adds results of one call, one after the other; returns the history and how often an earlier result was looked up. */
function take(results: readonly string[], keeps = true): { history: CallHistory; lookups: number } {
  let history = EMPTY_HISTORY
  let lookups = 0
  results.forEach((result, at) => {
    const named = hashResult(history, CALL, given(result), 'default', (isIt) => {
      lookups++
      return keeps ? results.slice(0, at).map(given).find(isIt) : undefined
    })
    const { resultHash } = named
    const record = { tool: 't', call: CALL, resultHash, isPoll: false, isChange: false, isTerse: false }
    history = addToHistory(named.history, record, at, POLICY)
  })
  return { history, lookups }
}

const RESULTS = ['done in 1s', 'done in 2s', 'failed', 'failed at 10:00:00', 'failed at 11:00:00', '']

describe('hashes of results', () => {
  it('are equal for results that differ only in times and ids, in any order', () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...RESULTS), { maxLength: 10 }), (results) => {
        const names = take(results).history.window.map(({ resultHash }) => resultHash)
        results.forEach((a, i) => {
          results.forEach((b, j) => {
            expect(names[i] === names[j]).toBe(maskVolatile(a) === maskVolatile(b))
          })
        })
      }),
    )
  })

  it('are computed without reading earlier results as long as those are equal', () => {
    expect(take(['same', 'same', 'same']).lookups).toBe(0)
    expect(take(['done in 1s', 'done in 2s', 'done in 3s', 'done in 4s']).lookups).toBe(1)
  })

  it('differ if the earlier result is gone, and are equal again after that', () => {
    const names = take(['done in 1s', 'done in 2s', 'done in 3s'], false).history.window.map(
      ({ resultHash }) => resultHash,
    )
    expect(names[0]).not.toBe(names[1])
    expect(names[1]).toBe(names[2])
  })
})
