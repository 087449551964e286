import { describe, expect, it } from 'vitest'
import { blockCalls, mayBlock, NO_LOOP } from '../../../src/core/loop/escalation.ts'
import { pendingCallsOf, signatureOf } from '../../../src/core/loop/tool-call.ts'
import { progressIn } from '../../../src/core/loop/tool-result.ts'
import { POLICY, tell } from './loop-story.ts'

interface Threshold {
  /** What docs/loops.md says of it, as the end of a title. */
  readonly rule: string
  readonly threshold: number
  /** True if the rule applies to so many. */
  readonly applies: (count: number) => boolean
}

/** `count` steps, each a call of the same tool. */
const each = (count: number, step: (at: number) => string) =>
  Array.from({ length: count }, (_, at) => step(at)).join(' ')

/** True if a story ends with a loop of this pattern. */
const ends = (story: string, pattern: string) => {
  const { found } = tell(story)
  return found.at(-1) === `${story.trim().split(/\s+/).length - 1}:${pattern}`
}

const isBlocked = (story: string, call: string, every?: number, now = 0) =>
  blockCalls(tell(story, POLICY, NO_LOOP, every).memory, [{ name: call, arguments: '' }], POLICY, 'r', true, now)
    .blocked[0] !== undefined

const warningsOf = (story: string) => tell(story).findings.length

const { repetitionThreshold, standstill, sameCallAnyResult, pollMultiplier, maxWarningsBeforeBlock, maxBlocks } = POLICY

/** Two warnings about equal calls, the second two calls after the first. */
const WARNED_TWICE = repetitionThreshold + 2 * (maxWarningsBeforeBlock - 1)

/** One and the same call at the first and the last of so many calls, and once between, with one new call on each side. */
const apart = (calls: number) => `p=1 q=1 r=1 a=1 p=1 p=1 q=1 q=1 n=1 a=1 m=1 ${'p=1 '.repeat(calls - 9)}a=1`

/** Eleven calls of one response. */
const eleven = (name: string) => each(11, (at) => `${name}${at}=1`).replaceAll(' ', '+')

/**
 * The same call in the first, the second and the last of so many responses, the ones between of more than ten calls: all
 * known but one.
 */
const acrossResponses = (count: number) =>
  `${eleven('p')}+${eleven('q')} a=1 ${eleven('p')}+n=1+a=1 ${each(count - 3, (at) => `${eleven('q')}+m${at}=1`)} a=1`

const blockedTimes = (times: number) => {
  let { memory } = tell('a=1 '.repeat(WARNED_TWICE + 1))
  let endsRun = false
  for (let at = 0; at < times; at++)
    ({ memory, endsRun } = blockCalls(memory, [{ name: 'a', arguments: '' }], POLICY, `r${at}`, false, 0))
  return endsRun
}

const callsOf = (count: number) =>
  Array.from({ length: count }, (_, at) => ({ id: `${at}`, name: `t${at}`, arguments: '{}' }))

/** Results that change again and again in no fixed order. */
const CHANGING = '0110100110'

const THRESHOLDS: readonly Threshold[] = [
  {
    rule: 'two calls in turn are a ping_pong',
    threshold: 4,
    applies: (calls) =>
      ends(
        each(calls, (at) => (at % 2 ? 'b=1' : 'a=1')),
        'ping_pong',
      ),
  },
  {
    rule: 'responses in a row without anything new are a cycle',
    threshold: standstill,
    applies: (responses) => ends(`a=1 b=1 c=1 ${each(responses, (at) => `${'abc'[at % 3]}=1`)}`, 'cycle'),
  },
  {
    rule: 'different calls in a circle are no cycle, as the first is not among the last calls any more',
    threshold: 11,
    applies: (calls) => tell(each(60, (at) => `c${at % calls}=1`)).findings.length === 0,
  },
  {
    rule: 'equal calls in a row are a repetition',
    threshold: repetitionThreshold,
    applies: (calls) => ends('a=1 '.repeat(calls), 'repetition'),
  },
  {
    rule: 'equal calls are a repetition up to so many calls from the first to the last, one more is too far',
    threshold: 11,
    applies: (calls) => !ends(apart(calls), 'repetition'),
  },
  {
    rule: 'responses from the first to the last of three equal calls are too many where they make more than 10 calls',
    threshold: 5,
    applies: (responses) => tell(acrossResponses(responses)).findings.length === 0,
  },
  {
    rule: 'new calls between two equal ones make a repetition of three into work',
    threshold: 2,
    applies: (news) => !ends(`a=1 ${each(news, (at) => `n${at}=1`)} a=1 a=1`, 'repetition'),
  },
  {
    rule: 'calls that change something between two equal ones make a repetition of three into work',
    threshold: 1,
    applies: (changes) => !ends(`a=1 ${each(changes, (at) => `n${at}!=1`)} a=1 a=1`, 'repetition'),
  },
  {
    rule: 'equal calls in a row with any results get a warning',
    threshold: sameCallAnyResult,
    applies: (calls) =>
      ends(
        each(calls, (at) => `a=${at}`),
        'same_call',
      ),
  },
  {
    rule: 'equal calls get the first warning',
    threshold: repetitionThreshold,
    applies: (calls) => warningsOf('a=1 '.repeat(calls)) > 0,
  },
  {
    rule: 'equal calls get the last warning before a block',
    threshold: WARNED_TWICE,
    applies: (calls) => warningsOf('a=1 '.repeat(calls)) === maxWarningsBeforeBlock,
  },
  {
    rule: 'the call of a repetition that was warned about twice is blocked',
    threshold: 7,
    applies: (call) => isBlocked('a=1 '.repeat(call - 1), 'a'),
  },
  { rule: 'blocks end the run', threshold: maxBlocks, applies: blockedTimes },
  {
    rule: 'a call whose result goes back and forth is blocked',
    threshold: 8,
    applies: (call) =>
      isBlocked(
        each(call - 1, (at) => `a=${at % 2}`),
        'a',
      ),
  },
  {
    rule: 'a call whose result goes back and forth between two times of day is blocked',
    threshold: 11,
    applies: (call) =>
      isBlocked(
        each(call - 1, (at) => `a=1~${at % 2}`),
        'a',
      ),
  },
  {
    rule: 'results in a fixed order are too many to be seen twice in the last 10 calls, and have no call blocked',
    threshold: 6,
    applies: (results) =>
      !each(60, (at) => `a=${at % results}`)
        .split(' ')
        .some((_, at, calls) => isBlocked(calls.slice(0, at + 1).join(' '), 'a')),
  },
  {
    rule: 'a call with results that change again and again in no fixed order reads a value',
    threshold: CHANGING.length,
    applies: (calls) => tell(each(calls, (at) => `a=${CHANGING[at]}`)).memory.history.window.at(-1)?.isPoll === true,
  },
  {
    rule: 'different calls of one response count as one call',
    threshold: 32,
    applies: (calls) => pendingCallsOf(callsOf(calls), POLICY).length === 1,
  },
  {
    rule: 'equal answers to a call that waits get a notice',
    threshold: repetitionThreshold * pollMultiplier,
    applies: (answers) => warningsOf('get?=run '.repeat(answers)) === 1,
  },
  {
    rule: 'equal answers to a call that waits get a second notice',
    threshold: 2 * repetitionThreshold * pollMultiplier,
    applies: (answers) => warningsOf('get?=run '.repeat(answers)) === 2,
  },
  {
    rule: 'equal answers to a call that waits get a third notice',
    threshold: 4 * repetitionThreshold * pollMultiplier,
    applies: (answers) => warningsOf('get?=run '.repeat(answers)) === 3,
  },
  {
    rule: 'two calls that wait in turn are a ping_pong',
    threshold: 4 * pollMultiplier,
    applies: (calls) =>
      ends(
        each(calls, (at) => (at % 2 ? 'b?=1' : 'a?=1')),
        'ping_pong',
      ),
  },
  {
    rule: 'responses of calls that wait in a row without anything new are a cycle',
    threshold: standstill * pollMultiplier,
    applies: (responses) => ends(`a?=1 b?=1 c?=1 ${each(responses, (at) => `${'abc'[at % 3]}?=1`)}`, 'cycle'),
  },
  {
    rule: 'calls that wait in a row with any results get a warning',
    threshold: sameCallAnyResult * pollMultiplier,
    applies: (calls) =>
      ends(
        each(calls, (at) => `a?=${at}`),
        'same_call',
      ),
  },
  {
    rule: 'equal answers within 10 minutes have a call that waits blocked',
    threshold: 40,
    applies: (answers) => isBlocked('get?=run '.repeat(answers), 'get', 1_000, answers * 1_000),
  },
  {
    rule: 'milliseconds since the first of 40 equal answers let a call that waits pass',
    threshold: 600_001,
    // The first came at 1 s.
    applies: (since) => !mayBlock(tell('get?=run '.repeat(40), POLICY, NO_LOOP, 1_000).memory, POLICY, 1_000 + since),
  },
  {
    rule: 'a word that waits is not read from this character of the arguments on',
    threshold: 301,
    applies: (end) => signatureOf({ name: 'a', arguments: `${' '.repeat(end - 5)}sleep` }).isPoll !== true,
  },
  {
    rule: 'a result of so many characters that says running does not say that work goes on',
    threshold: 301,
    applies: (length) => !progressIn({ callId: '', text: () => `${' '.repeat(length - 7)}running` }).goesOn,
  },
  {
    rule: 'a result of so many characters can show progress',
    threshold: 17,
    applies: (length) => !progressIn({ callId: '', text: () => 'x'.repeat(length) }).isTerse,
  },
  {
    rule: 'the call of a repetition with results that cannot show progress is blocked',
    threshold: 11,
    applies: (call) => isBlocked('a.=ok '.repeat(call - 1), 'a'),
  },
]

describe('a threshold of the loop guard:', () => {
  it.each(THRESHOLDS)('$rule: $threshold, and one less is not enough', ({ threshold, applies }) => {
    expect([applies(threshold - 1), applies(threshold)]).toEqual([false, true])
  })
})
