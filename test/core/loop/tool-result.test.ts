import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { blockText } from '../../../src/core/loop/loop-notices.ts'
import { exactHash, progressIn, resultsAfter, type TranscriptResult } from '../../../src/core/loop/tool-result.ts'
import { conversationOf, result } from '../transcript.ts'

/** A result as a request brings it: as one text, or as a part of a list. */
function readResult(text: string, isPart = false): TranscriptResult {
  const content = isPart ? [{ type: 'text', text }] : text
  const found = resultsAfter(conversationOf([{ ...result('a'), content }]), -1)
  const [only] = found
  if (!only || found.length > 1) throw new Error('not one result')
  return only
}

const pieces = [
  'Still running',
  'status: "pending"',
  'not yet\nready',
  'not ready',
  'in progress',
  'Task a-1: queued',
  'Running',
  "phase => 'Pending'",
  'waiting for',
  'currently queued',
  'done: false',
  'progress: 7%',
  '4.5 % complete',
  '0/1   init:2 ',
  'is being sent',
  'has not run yet',
  'wait longer',
  'executing in background',
  'no mail yet',
  'state":\t',
  'x',
  ' ',
  '\n\n',
  '\\n\\n',
  '"',
  'é日\u{1F600}',
  '[BUDGET: Iteration 5/6.]',
  'You appear to be repeating the same action.',
  blockText('search', 3),
  'y'.repeat(290),
  'é'.repeat(150),
  '\u0001'.repeat(190),
]
const text = fc.array(fc.constantFrom(...pieces), { maxLength: 6 }).map((some) => some.join(''))

describe('a result that is not decoded', () => {
  it('says the same as its text', () => {
    fc.assert(
      fc.property(text, (said) => {
        const one = readResult(said)
        expect([one.callId, one.text()]).toEqual(['a', said])
        expect(one.json).toBeDefined()
        expect(progressIn(one)).toEqual(progressIn({ callId: 'a', text: () => said }))
        expect(progressIn(one).isTerse).toBe(said.length <= 16)
      }),
    )
  })

  it.each(['é日\u{1F600}', '\u0001\u0002\u0003\u0004', '\n\t"\\', '[日] '])(
    'says that work goes on after %j as well',
    (signs) => {
      expect(progressIn(readResult(`${signs}Running`)).goesOn).toBe(true)
    },
  )

  it('has the same exact hash as another in the same form only if it says the same', () => {
    fc.assert(
      fc.property(text, text, fc.boolean(), (a, b, isPart) => {
        const hash = (said: string) => exactHash(readResult(said, isPart), 'default')
        const isSame = exactHash(readResult(a), 'none') === exactHash(readResult(b), 'none')
        if (hash(a) === hash(b)) expect(isSame).toBe(true)
        if (a === b) expect(hash(a)).toBe(hash(b))
      }),
    )
  })

  it('in long JSON says that work goes on if a state in it does', () => {
    const filler = { description: 'x'.repeat(400), list: [1, 2, 3] }
    const goesOn = (value: unknown) => {
      const said = JSON.stringify(value)
      expect(progressIn({ callId: 'a', text: () => said })).toEqual(progressIn(readResult(said)))
      return progressIn(readResult(said)).goesOn
    }
    const states = ['in_progress', 'IN_PROGRESS', 'InProgress', 'CREATE_IN_PROGRESS', 'queued', 'RUNNING', 'processing']
    for (const state of states) {
      expect(goesOn({ ...filler, status: state })).toBe(true)
      expect(goesOn([{ stacks: [{ ...filler, StackStatus: state }] }])).toBe(true)
      expect(goesOn({ ...filler, content: JSON.stringify({ job_state: state }) })).toBe(true)
    }
    for (const state of ['completed', 'pending', 'CREATE_COMPLETE', 'not running any more'])
      expect(goesOn({ ...filler, status: state })).toBe(false)
    expect(goesOn({ ...filler, note: 'in_progress' })).toBe(false)
    expect(progressIn(readResult(`${filler.description} "status": "in_progress"`)).goesOn).toBe(false)
    expect(progressIn(readResult('CREATE_IN_PROGRESS')).goesOn).toBe(true)
    expect(progressIn(readResult('An error occurred while running the tool.')).goesOn).toBe(false)
  })

  it('of up to 16 characters is too short to show progress', () => {
    const results = ['', 'ok', 'x'.repeat(16), 'x'.repeat(17)]
    expect(results.map((said) => progressIn(readResult(said)).isTerse)).toEqual([true, true, true, false])
  })
})

describe('a state in a long result', () => {
  const stateIn = (length: number) => `{"status":"running","log":"${'x'.repeat(length)}"}`

  it('is found up to 64 KB, and not looked for in more', () => {
    expect(progressIn({ callId: 'a', text: () => stateIn(60_000) }).goesOn).toBe(true)
    expect(progressIn({ callId: 'a', text: () => stateIn(70_000) }).goesOn).toBe(false)
    expect(progressIn(readResult(stateIn(60_000))).goesOn).toBe(true)
    expect(progressIn(readResult(stateIn(70_000))).goesOn).toBe(false)
  })
})
