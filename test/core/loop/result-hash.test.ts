import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { addToHistory, type CallHistory, EMPTY_HISTORY, isSamePair } from '../../../src/core/loop/call-history.ts'
import { callsAt, hashResult } from '../../../src/core/loop/tool-call.ts'
import { maskVolatile, withoutHarnessNoise } from '../../../src/core/loop/tool-result.ts'
import { called, conversationOf, result as resultOf } from '../transcript.ts'
import { POLICY } from './loop-story.ts'

/** Adds results of one call, one after the other; returns the history and how often an earlier result was looked up. */
function take(results: readonly string[], keeps = true): { history: CallHistory; lookups: number } {
  let history = EMPTY_HISTORY
  let lookups = 0
  results.forEach((_, at) => {
    const shown = results.slice(0, at + 1).map((text, step) => (keeps || step === at ? text : 'removed'))
    const messages = shown.flatMap((text, step) => [called(`c${step}`), resultOf(`c${step}`, text)])
    const reader = { conversation: conversationOf(messages), policy: POLICY, callsByIndex: new Map() }
    const [made] = callsAt(reader, 2 * at)
    if (!made?.result) throw new Error('not a call with its result')
    const { history: comparable, ...hashes } = hashResult(reader, 2 * at, history, made.call, made.result)
    lookups += reader.callsByIndex.size - 1
    history = addToHistory(comparable, { ...made, ...hashes, isTerse: false }, at + 1, 3)
  })
  return { history, lookups }
}

const CODEX = 'Chunk ID: a1b2c3\nWall time: 0.0512 seconds\nOutput:\nok at 10:00'
const RESULTS = [
  'done in 1s',
  'done in 2s',
  'failed',
  'failed at 10:00:00',
  'failed at 11:00:00',
  '',
  CODEX,
  CODEX.replace('a1b2c3', 'ffffff'),
  CODEX.replace('10:00', '11:00'),
]

describe('hashes of results', () => {
  it('say which results are equal without the harness’s part, and which once times and ids are masked, in any order', () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...RESULTS), { maxLength: 10 }), (results) => {
        const { window } = take(results).history
        const said = results.map(withoutHarnessNoise)
        for (const [i, a] of window.entries()) {
          for (const [j, b] of window.entries()) {
            expect(a.resultHash === b.resultHash).toBe(said[i] === said[j])
            expect(isSamePair(a, b, false)).toBe(maskVolatile(said[i] ?? '') === maskVolatile(said[j] ?? ''))
          }
        }
      }),
    )
  })

  it('are computed without reading earlier results as long as those are equal', () => {
    expect(take(['same', 'same', 'same']).lookups).toBe(0)
    expect(take(['done in 1s', 'done in 2s', 'done in 3s', 'done in 4s']).lookups).toBe(1)
  })

  it('differ if the earlier result is gone, and are equal again after that', () => {
    const { window } = take(['done in 1s', 'done in 2s', 'done in 3s'], false).history
    const names = window.map(({ maskedHash, resultHash }) => maskedHash ?? resultHash)
    expect(names[0]).not.toBe(names[1])
    expect(names[1]).toBe(names[2])
  })
})
