import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { callHash } from '../../src/core/call.ts'
import {
  humanSpoke,
  type LoopMemory,
  loopCall,
  MAX_BLOCKS,
  madeCall,
  mayRefuse,
  NO_LOOP,
  observeStep,
  refuseCalls,
} from '../../src/core/loop-guard.ts'
import { callOf, POLICY, policyWith, stepsOf, tell } from './loop-story.ts'

const refuse = (memory: LoopMemory, step: string, policy = POLICY) =>
  refuseCalls(
    memory,
    step.split('+').map((call) => callOf(call)),
    policy,
  )

const isRefused = (memory: LoopMemory, call: string, policy = POLICY) =>
  refuse(memory, call, policy).refusals[0] !== undefined

/** Eight equal calls: two warnings, and two calls that nothing came of since. */
const STUCK = 'a=1 '.repeat(8)

describe('a model that repeats itself', () => {
  it('is told so, then told to wait, longer each time', () => {
    const { findings } = tell('a=1 '.repeat(18), policyWith({ mode: 'warn' }))
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 2, 3, 4, 5, 6])
    const [first = '', ...others] = findings.map(({ notice }) => notice)
    expect(first).toContain(
      'You appear to be repeating the same action. The last 3 tool calls were identical. Try a different approach.',
    )
    expect(first).toContain("'a'")
    expect(first).not.toContain('wait')
    expect(others.map((notice) => /wait (\d+) seconds before polling again/.exec(notice)?.[1])).toEqual([
      '5',
      '10',
      '30',
      '60',
      '60',
    ])
    for (const notice of others) expect(notice).toContain('check whether its precondition is met')
  })

  it('is told what it repeats, in the words for it', () => {
    const noticeOf = (story: string) => tell(story).findings[0]?.notice ?? ''
    expect(noticeOf('view=x grep=1 view=x find=2 view=x')).toContain(
      '3 of the last 5 tool calls were identical',
    )
    expect(noticeOf('a=1 b=2 a=1 b=2')).toMatch(/alternated between the same two.*'a', 'b'/)
    expect(noticeOf('a=1 b=2 c=3 a=1 b=2 c=3')).toMatch(/the same 3 over and over.*'a', 'b', 'c'/)
    expect(noticeOf('a=1 a=2 a=3 a=4 a=5')).toMatch(/though their results may differ.*wait 5 seconds/)
  })

  it('has its call refused after two warnings in vain, before it completes the loop a third time', () => {
    const before = tell('a=1 '.repeat(7)).memory
    expect([mayRefuse(before, POLICY), isRefused(before, 'a')]).toEqual([false, false])
    const { memory } = tell(STUCK)
    expect(mayRefuse(memory, POLICY)).toBe(true)
    const { refusals, endsRun } = refuse(memory, 'b+a+a')
    expect(refusals).toEqual([
      undefined,
      { pattern: 'repetition', tool: 'a', call: callOf('a').call, count: 8 },
      { pattern: 'repetition', tool: 'a', call: callOf('a').call, count: 8 },
    ])
    expect(endsRun).toBe(false)
  })

  it.each([
    { pattern: 'ping_pong', story: `${'a=1 b=2 '.repeat(5)}a=1`, next: 'b' },
    { pattern: 'cycle', story: `${'a=1 b=2 c=3 '.repeat(5)}a=1 b=2`, next: 'c' },
  ])('has a $pattern broken, and then every call of it', ({ story, next }) => {
    const { memory } = tell(story)
    expect(isRefused(memory, next === 'b' ? 'a' : 'b')).toBe(false)
    expect(isRefused(memory, next)).toBe(true)
    const { memory: refusing } = refuse(memory, next)
    expect(['a', 'b'].map((call) => isRefused(refusing, call))).toEqual([true, true])
  })

  it('ends its run with the third response that had to be refused', () => {
    let { memory } = tell(STUCK)
    const ends = Array.from({ length: MAX_BLOCKS }, () => {
      const refused = refuse(memory, 'a')
      memory = refused.memory
      return refused.endsRun
    })
    expect(ends).toEqual([false, false, true])
  })

  it('may call it again once it has done something new and different, and is not warned for long', () => {
    const { memory } = refuse(tell(STUCK).memory, 'a')
    expect(isRefused(tell('b=1', POLICY, memory).memory, 'a')).toBe(false)
    const { memory: back } = tell('b=1 a=1 a=1', POLICY, memory)
    expect(isRefused(back, 'a')).toBe(true)
  })

  it('does not get out by a new result of the refused call alone', () => {
    const { memory } = refuse(tell(STUCK).memory, 'a')
    expect(isRefused(tell('a=2', POLICY, memory).memory, 'a')).toBe(true)
  })

  it('that waits until the result changes, and later waits again, has ignored nothing', () => {
    const phase = (name: string) => `${name}!=ok ${'get?=run '.repeat(6)}get?=ok `
    const { findings, memory } = tell(
      `${phase('build1')}${phase('build2')}build3!=ok ${'get?=run '.repeat(5)}`,
    )
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 1])
    expect(isRefused(memory, 'get')).toBe(false)
  })

  it('that goes back to a loop whose results are what they were has', () => {
    const { findings } = tell('a=1 a=1 a=1 x=1 y=1 a=1 a=1 a=1')
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 2])
    const others = Array.from({ length: 12 }, (_, at) => `x${at}=1`).join(' ')
    const later = tell(`a=1 a=1 a=1 ${others} a=1 a=1 a=1 ${others} a=1 a=1`)
    expect(later.findings.map(({ warnings }) => warnings)).toEqual([1, 2])
    expect(isRefused(later.memory, 'a')).toBe(true)
  })

  it('that heeds each warning and later repeats something else is not refused', () => {
    const { findings, memory } = tell('a=1 a=1 a=1 x=1 b=1 b=1 b=1 y=1 c=1 c=1 c=1 z=1 d=1 d=1')
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 1, 1])
    expect(mayRefuse(memory, POLICY)).toBe(false)
  })

  it('that comes back to the same loop has ignored its warning', () => {
    const { findings } = tell('a=1 a=1 a=1 x=1 y=1 z=1 a=1 a=1 a=1')
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 2])
  })

  it('that goes from loop to loop without anything new has ignored it as well', () => {
    const { findings } = tell('a=1 b=1 a=1 a=1 b=1 b=1 b=1')
    expect(findings.map(({ tools, warnings }) => [tools[0], warnings])).toEqual([
      ['a', 1],
      ['b', 2],
    ])
  })

  it('is never refused a call whose results differ', () => {
    const story = Array.from({ length: 40 }, (_, at) => `now=${at}`).join(' ')
    const { findings, memory } = tell(story)
    expect(findings).toHaveLength(8)
    expect(mayRefuse(memory, POLICY)).toBe(false)
  })

  it.each(['observe', 'warn'])('is never refused a call in mode %s', (mode) => {
    const policy = policyWith({ mode })
    const { memory } = tell('a=1 '.repeat(30), policy)
    expect([mayRefuse(memory, policy), isRefused(memory, 'a', policy)]).toEqual([false, false])
  })

  it('is refused at once where no warning may be ignored', () => {
    const policy = policyWith({ max_warnings_before_block: 0 })
    expect(isRefused(tell('a=1 a=1', policy).memory, 'a', policy)).toBe(true)
    expect(isRefused(tell('a=1', policy).memory, 'a', policy)).toBe(false)
  })

  it('is refused the next call where one that had to be refused came through', () => {
    const { memory, findings } = tell('a=1 '.repeat(9))
    expect(findings).toHaveLength(3)
    expect(isRefused(memory, 'a')).toBe(true)
  })
})

describe('a human message', () => {
  it('lifts any block and begins with a first warning again, whatever happened before', () => {
    const step = fc.constantFrom('a=1', 'b=1', 'a=2', 'c=1', 'a=1+b=1', 'HUMAN')
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 60 }), fc.boolean(), (steps, isRefusedToo) => {
        let { memory } = tell(steps.join(' '))
        if (isRefusedToo) memory = refuse(memory, 'a+b+c').memory
        const after = humanSpoke(memory)
        expect(mayRefuse(after, POLICY)).toBe(false)
        for (const call of ['a', 'b', 'c']) expect(isRefused(after, call)).toBe(false)
        for (const { warnings } of tell('a=1 a=1 a=1', POLICY, after).findings) expect(warnings).toBe(1)
        expect(after.blocks).toBe(0)
      }),
    )
  })

  it('does not break a row of equal calls', () => {
    expect(tell('a=1 a=1 HUMAN a=1').found).toEqual(['2:repetition'])
    expect(tell('a=1 a=2 HUMAN a=3 a=4 HUMAN a=5').found).toEqual(['4:same_call'])
  })

  it('does break everything else', () => {
    expect(tell('a=1 b=2 HUMAN a=1 b=2').found).toEqual([])
    expect(tell('a=1 b=1 a=1 HUMAN b=1 a=1').found).toEqual([])
  })
})

describe('what counts for the guard', () => {
  const readOf = (name: string, text: string, result?: string) =>
    loopCall('1', madeCall({ name, arguments: text }, POLICY), result, POLICY)

  it('is no call of an exempt tool, which breaks no row either', () => {
    expect(readOf('process', '{"action":"list"}', 'nothing')).toBeUndefined()
    const policy = policyWith({ exempt_tools: ['browser_*'] })
    expect(madeCall({ name: 'browser_click', arguments: '{}' }, policy).isExempt).toBe(true)
    expect(
      refuseCalls(tell(STUCK).memory, [callOf('a')], policyWith({ exempt_tools: ['a'] })).refusals,
    ).toEqual([undefined])
  })

  it('is a call with arguments of any kind, and one without a result', () => {
    expect(readOf('ls', '{"path": ', 'usage')).toMatchObject({ call: callHash('ls', '{"path": ') })
    expect(readOf('ls', '', undefined)).toMatchObject({ outcome: '' })
  })

  it('is a poll by what it asks or by what is answered', () => {
    expect(readOf('job_status', '{}', 'ok')?.isPoll).toBe(true)
    expect(readOf('job', '{}', 'still running')?.isPoll).toBe(true)
    expect(readOf('job', '{}', 'ok')?.isPoll).toBe(false)
  })
})

describe('the memory of a run', () => {
  const call = fc
    .tuple(fc.constantFrom('a', 'b', 'c', 'get?', 'edit!'), fc.constantFrom('1', '2'))
    .map(([name, outcome]) => `${name}=${outcome}`)
  const step = fc.array(call, { minLength: 1, maxLength: 3 }).map((calls) => calls.join('+'))
  const story = fc.array(
    fc.oneof({ weight: 20, arbitrary: step }, { weight: 1, arbitrary: fc.constant('HUMAN') }),
    {
      minLength: 1,
      maxLength: 60,
    },
  )

  it('is plain data: any run goes on the same after it was stored and read', () => {
    fc.assert(
      fc.property(story, story, (first, second) => {
        const { memory } = tell(first.join(' '))
        const stored = JSON.parse(JSON.stringify(memory)) as LoopMemory
        expect(stored).toEqual(memory)
        expect(tell(second.join(' '), POLICY, stored)).toEqual(tell(second.join(' '), POLICY, memory))
        expect(refuse(stored, 'a+b').refusals).toEqual(refuse(memory, 'a+b').refusals)
      }),
    )
  })

  it('stays as small however long any run is and whatever its tools are called', () => {
    fc.assert(
      fc.property(story, fc.string({ minLength: 1_000, maxLength: 2_000 }), (steps, name) => {
        let memory = NO_LOOP
        for (let round = 0; round < 5; round++) {
          for (const calls of stepsOf(steps.join(' '))) {
            if (calls === 'HUMAN') continue
            const long = calls.map((one) => ({ ...one, tool: `${one.tool}${name}` }))
            memory = observeStep(memory, long, POLICY).memory
            memory = refuseCalls(memory, long, POLICY).memory
          }
        }
        expect(memory.trail.window.length).toBeLessThanOrEqual(POLICY.windowSize)
        expect(JSON.stringify(memory).length).toBeLessThan(8_000)
      }),
      { numRuns: 30 },
    )
  })

  it('is not changed by what is done with it', () => {
    fc.assert(
      fc.property(story, (steps) => {
        const { memory } = tell(steps.join(' '))
        const before = JSON.stringify(memory)
        tell('a=1 a=1 a=1', POLICY, memory)
        refuse(memory, 'a+b')
        humanSpoke(memory)
        expect(JSON.stringify(memory)).toBe(before)
      }),
    )
  })
})
