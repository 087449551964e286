import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  blockCalls,
  endingLoop,
  humanSpoke,
  type LoopCall,
  type LoopMemory,
  mayBlock,
  NO_LOOP,
  observeStep,
  warningRefused,
} from '../../../src/core/loop/escalation.ts'
import { callOf, POLICY, policyWith, stepsOf, tell } from './loop-story.ts'

const refuse = (memory: LoopMemory, step: string, policy = POLICY, now = 0) => {
  const calls = step.split('+').map((name) => ({ name, arguments: '' }))
  return blockCalls(memory, calls, policy, 'request', true, now)
}

const isRefused = (memory: LoopMemory, call: string, policy = POLICY, now = 0) =>
  refuse(memory, call, policy, now).blocked[0] !== undefined

const mayRefuseAny = (memory: LoopMemory, policy = POLICY) => mayBlock(memory, policy, 0)

/** Six equal calls: two warnings, and one more call without anything new. */
const STUCK = 'a=1 '.repeat(6)

describe('a model that repeats itself', () => {
  it('gets a warning, then advice to wait, each time longer', () => {
    const { findings } = tell('a=1 '.repeat(13), policyWith({ mode: 'warn' }))
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

  it('gets a notice that names what it repeats', () => {
    const noticeOf = (story: string) => tell(story).findings[0]?.notice ?? ''
    expect(noticeOf('view=x grep=1 view=x find=2 view=x')).toContain('3 of the last 5 tool calls were identical')
    expect(noticeOf('a=1 b=2 a=1 b=2')).toMatch(/alternated between the same two.*'a', 'b'/)
    expect(noticeOf('a=1 b=2 c=3 a=1 b=2 c=3 a=1 b=2')).toMatch(
      /The last 5 responses made only tool calls that were made before.*'c', 'a', 'b'/,
    )
    expect(noticeOf('get?=run '.repeat(6))).toMatch(/The last 6 tool calls were identical.*wait 5 seconds/)
    expect(noticeOf('a=1 a=2 a=3 a=4 a=5 a=6')).toMatch(/though their results may differ.*wait 5 seconds/)
  })

  it('has nothing blocked where the guard only warns or observes, whatever was blocked before', () => {
    const { memory } = refuse(tell(STUCK).memory, 'a')
    expect(memory.blockedLoop).toBeDefined()
    for (const mode of ['warn', 'observe'] as const) expect(mayRefuseAny(memory, policyWith({ mode }))).toBe(false)
  })

  it('has its call blocked after two ignored warnings, when the loop would complete a third time', () => {
    const before = tell('a=1 '.repeat(5)).memory
    expect([mayRefuseAny(before), isRefused(before, 'a')]).toEqual([false, false])
    const { memory } = tell(STUCK)
    expect(mayRefuseAny(memory)).toBe(true)
    const { blocked, endsRun } = refuse(memory, 'b+a+a')
    expect(blocked).toEqual([
      undefined,
      { pattern: 'repetition', tool: 'a', call: callOf('a').call, count: 6 },
      { pattern: 'repetition', tool: 'a', call: callOf('a').call, count: 6 },
    ])
    expect(endsRun).toBe(false)
  })

  it.each([
    { pattern: 'ping_pong', story: `${'a=1 b=2 '.repeat(3)}a=1`, next: 'b' },
    { pattern: 'cycle', story: `${'a=1 b=2 c=3 '.repeat(5)}`, next: 'a' },
  ])('has a call of a $pattern blocked, and then every call of that loop', ({ story, next }) => {
    const { memory } = tell(story)
    expect(isRefused(memory, next)).toBe(true)
    const { memory: blockedLoop } = refuse(memory, next)
    expect(['a', 'b'].map((call) => isRefused(blockedLoop, call))).toEqual([true, true])
  })

  it('ends its run with the fifth response that has a blocked call', () => {
    let { memory } = tell(STUCK)
    const ends = Array.from({ length: POLICY.maxBlocks }, () => {
      const refused = refuse(memory, 'a')
      memory = refused.memory
      return refused.endsRun
    })
    expect(ends).toEqual([false, false, false, false, true])
  })

  it('may repeat the call after something new and different, and is then warned first', () => {
    const { memory } = refuse(tell(STUCK).memory, 'a')
    expect(isRefused(tell('b=1', POLICY, memory).memory, 'a')).toBe(false)
    const { memory: back, findings } = tell(`b=1 ${'a=1 '.repeat(7)}`, POLICY, memory)
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 2])
    expect(isRefused(back, 'a')).toBe(true)
  })

  it('does not leave the loop when only the blocked call gives a new result', () => {
    const { memory } = refuse(tell(STUCK).memory, 'a')
    expect(isRefused(tell('a=2', POLICY, memory).memory, 'a')).toBe(true)
  })

  it('never has a call blocked if something new comes in between, however many notices it got', () => {
    const work = (step: (at: number) => string) => tell(Array.from({ length: 40 }, (_, at) => step(at)).join(' '))
    const stories = [
      work((at) => `scroll=ok see=${at}`),
      work((at) => `todo=list work${at}=ok`),
      work((at) => `down=ok down=ok down=ok see=${at}`),
      work((at) => `a=1 a=1 a=1 a=1 b=${at}`),
    ]
    for (const { memory } of stories) {
      expect(mayRefuseAny(memory)).toBe(false)
      for (const call of ['scroll', 'todo', 'down', 'a']) expect(isRefused(memory, call)).toBe(false)
    }
  })

  it('may ignore twice as many warnings if its results are too short to show progress', () => {
    const { memory, findings } = tell('undo.=ok '.repeat(9))
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 2, 3, 4])
    const refusedAfter = (call: string) =>
      [5, 6, 7, 8, 9, 10].map((calls) => isRefused(tell(`${call}=ok `.repeat(calls)).memory, 'undo'))
    expect(refusedAfter('undo')).toEqual([false, true, true, true, true, true])
    expect(refusedAfter('undo.')).toEqual([false, false, false, false, false, true])
    expect(isRefused(tell('undo.=ok', POLICY, memory).memory, 'undo')).toBe(true)
    expect(isRefused(tell(`${'key.=ok see=longer '.repeat(3)}key.=ok`).memory, 'see')).toBe(true)
  })

  it('has a polling call blocked only after 40 equal answers within ten minutes', () => {
    const waitFor = (answers: number, every: number) => tell('get?=run '.repeat(answers), POLICY, NO_LOOP, every)
    const { memory } = waitFor(40, 10_000)
    expect(isRefused(waitFor(39, 10_000).memory, 'get', POLICY, 390_000)).toBe(false)
    expect(mayBlock(memory, POLICY, 400_000)).toBe(true)
    expect(refuse(memory, 'get', POLICY, 400_000).blocked[0]).toMatchObject({
      pattern: 'repetition',
      count: 40,
    })
    expect(isRefused(waitFor(60, 10_000).memory, 'get', POLICY, 600_000)).toBe(true)
    expect(isRefused(waitFor(200, 20_000).memory, 'get', POLICY, 4_000_000)).toBe(false)
    expect(isRefused(tell('get?=run '.repeat(200)).memory, 'get', POLICY)).toBe(false)
  })

  it('keeps a polling call unblocked when the clock is set back', () => {
    const { memory } = tell('get?=run '.repeat(40), POLICY, NO_LOOP, 60_000)
    expect(isRefused(memory, 'get', POLICY, 2_400_000)).toBe(false)
    expect(isRefused(memory, 'get', POLICY, -86_400_000)).toBe(false)
  })

  it('may make a blocked polling call again after ten minutes', () => {
    const { memory } = refuse(tell('get?=run '.repeat(40), POLICY, NO_LOOP, 1_000).memory, 'get', POLICY, 40_000)
    expect(isRefused(memory, 'get', POLICY, 600_000)).toBe(true)
    expect(isRefused(memory, 'get', POLICY, 602_000)).toBe(false)
  })

  it('has only the equal answers since the last new one counted while it polls', () => {
    const moved = tell(`${'get?=run '.repeat(30)}${'get?=half '.repeat(30)}`, POLICY, NO_LOOP, 1_000)
    expect(isRefused(moved.memory, 'get', POLICY, 61_000)).toBe(false)
  })

  it('has no call blocked if it reacts to each warning and later repeats something else', () => {
    const { findings, memory } = tell('a=1 a=1 a=1 x=1 b=1 b=1 y=1 c=1 c=1 z=1 d=1')
    expect(findings.map(({ warnings }) => warnings)).toEqual([1, 1, 1])
    expect(mayRefuseAny(memory)).toBe(false)
  })

  it('has ignored a warning if it goes from one loop to the next without anything new', () => {
    const { findings } = tell('b=1 a=1 a=1 a=1 b=1 b=1')
    expect(findings.map(({ tools, warnings }) => [tools[0], warnings])).toEqual([
      ['a', 1],
      ['b', 2],
    ])
  })

  it('never has a call blocked if the results of the call differ', () => {
    const story = Array.from({ length: 40 }, (_, at) => `now=${at}`).join(' ')
    const { findings, memory } = tell(story)
    expect(findings).toHaveLength(1)
    expect(mayRefuseAny(memory)).toBe(false)
  })

  it.each(['observe', 'warn'])('never has a call blocked in mode %s', (mode) => {
    const policy = policyWith({ mode })
    const { memory } = tell('a=1 '.repeat(30), policy)
    expect([mayRefuseAny(memory, policy), isRefused(memory, 'a', policy)]).toEqual([false, false])
  })

  it('has its call blocked at once if no warning may be ignored', () => {
    const policy = policyWith({ max_warnings_before_block: 0 })
    expect(isRefused(tell('a=1 a=1', policy).memory, 'a', policy)).toBe(true)
    expect(isRefused(tell('a=1', policy).memory, 'a', policy)).toBe(false)
  })
})

describe('a human message', () => {
  it('lifts any block and resets the warnings, whatever happened before', () => {
    const step = fc.constantFrom('a=1', 'b=1', 'a=2', 'c=1', 'a=1+b=1', 'HUMAN')
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 60 }), fc.boolean(), (steps, isRefusedToo) => {
        let { memory } = tell(steps.join(' '))
        if (isRefusedToo) memory = refuse(memory, 'a+b+c').memory
        const after = humanSpoke(memory)
        expect(mayRefuseAny(after)).toBe(false)
        for (const call of ['a', 'b', 'c']) expect(isRefused(after, call)).toBe(false)
        for (const { warnings } of tell('a=1 a=1 a=1', POLICY, after).findings) expect(warnings).toBe(1)
        expect(after.blocks).toBe(0)
      }),
    )
  })

  it('resets everything, including equal calls in a row', () => {
    expect(tell('a=1 a=1 HUMAN a=1 a=1').found).toEqual([])
    expect(tell('a=1 a=2 a=3 HUMAN a=4 a=5 a=6').found).toEqual([])
    expect(tell('a=1 b=2 HUMAN a=1 b=2').found).toEqual([])
    expect(tell('a=1 b=1 a=1 HUMAN b=1 a=1').found).toEqual([])
  })

  it('with the same words as before lifts any block and resets all but equal calls in a row', () => {
    expect(tell('a=1 a=1 AGAIN a=1').found).toEqual(['2:repetition'])
    expect(tell('a=1 a=2 AGAIN a=3 a=4 AGAIN a=5 a=6').found).toEqual(['5:same_call'])
    expect(tell('a=1 b=2 AGAIN a=1 b=2').found).toEqual([])
    expect(isRefused(humanSpoke(tell(STUCK).memory, true), 'a')).toBe(false)
  })
})

describe('a call of an exempt tool', () => {
  it('is never blocked', () => {
    expect(isRefused(tell(STUCK).memory, 'a', policyWith({ exempt_tools: ['a'] }))).toBe(false)
  })
})

describe('the loop memory of a run', () => {
  const call = fc
    .tuple(fc.constantFrom('a', 'b', 'c', 'get?', 'edit!'), fc.constantFrom('1', '2'))
    .map(([name, resultHash]) => `${name}=${resultHash}`)
  const step = fc.array(call, { minLength: 1, maxLength: 3 }).map((calls) => calls.join('+'))
  const story = fc.array(fc.oneof({ weight: 20, arbitrary: step }, { weight: 1, arbitrary: fc.constant('HUMAN') }), {
    minLength: 1,
    maxLength: 60,
  })

  it('is plain data: a run continues the same after it was stored and read', () => {
    fc.assert(
      fc.property(story, story, (first, second) => {
        const { memory } = tell(first.join(' '))
        const stored = JSON.parse(JSON.stringify(memory)) as LoopMemory
        expect(stored).toEqual(memory)
        expect(tell(second.join(' '), POLICY, stored)).toEqual(tell(second.join(' '), POLICY, memory))
        expect(refuse(stored, 'a+b').blocked).toEqual(refuse(memory, 'a+b').blocked)
      }),
    )
  })

  it('stays small, however long the run and the names of its tools are', () => {
    fc.assert(
      fc.property(story, fc.string({ minLength: 1_000, maxLength: 2_000 }), (steps, name) => {
        let memory = NO_LOOP
        for (let round = 0; round < 5; round++) {
          for (const calls of stepsOf(steps.join(' '))) {
            if (calls === 'HUMAN' || calls === 'AGAIN') continue
            const long = calls.map((one) => ({ ...one, tool: `${one.tool}${name}` }))
            memory = observeStep(memory, long, POLICY).memory
            memory = refuse(memory, long.map(({ tool }) => tool).join('+')).memory
          }
        }
        expect(memory.history.window.length).toBeLessThanOrEqual(12)
        expect(JSON.stringify(memory).length).toBeLessThan(8_000)
      }),
      { numRuns: 30 },
    )
  })

  it('is never mutated', () => {
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

describe('a call that was made although it was to be blocked', () => {
  const blocksAfter = (story: string, policy = POLICY) => tell(story, policy).memory.blocks

  it('is a failed block, and the fifth ends the run', () => {
    expect([6, 7, 8, 11].map((calls) => blocksAfter('a=1 '.repeat(calls)))).toEqual([0, 1, 2, 5])
    expect(endingLoop(tell('a=1 '.repeat(10)).memory, POLICY)).toBeUndefined()
    expect(endingLoop(tell('a=1 '.repeat(11)).memory, POLICY)).toEqual({ pattern: 'repetition', count: 11, tool: 'a' })
    expect(endingLoop(tell('a=1 '.repeat(9)).memory, policyWith({ max_blocks: 3 }))).toBeDefined()
  })

  it.each([
    ['two calls in turn', 'a=1 b=2 '],
    ['a cycle of three', 'a=1 b=2 c=3 '],
    ['calls side by side', 'a=1+b=2 '],
  ])('ends every kind of loop: %s', (_, lap) => {
    expect(endingLoop(tell(lap.repeat(20)).memory, POLICY)).toBeDefined()
  })

  it('is not counted again if the response had been blocked, as where asking again failed', () => {
    const { memory } = blockCalls(tell(STUCK).memory, [{ name: 'a', arguments: '' }], POLICY, 'request', false, 0)
    expect(memory.blocks).toBe(1)
    expect(tell('a=1', POLICY, memory).memory.blocks).toBe(1)
    expect(tell('a=1 a=1', POLICY, memory).memory.blocks).toBe(2)
  })

  it('counts nothing in the modes that block nothing, for calls that wait, and for results equal only after masking', () => {
    for (const mode of ['warn', 'observe']) expect(blocksAfter('a=1 '.repeat(40), policyWith({ mode }))).toBe(0)
    expect(blocksAfter('a?=1 '.repeat(80))).toBe(0)
    const masked = Array.from({ length: 40 }, (_, at) => `a=1~${at}`).join(' ')
    expect(blocksAfter(masked)).toBe(0)
  })

  it('counts nothing while each response brings something new, whatever else is repeated', () => {
    const repeated = fc.array(fc.constantFrom('a=1', 'b=2', 'c!=3'), { minLength: 1, maxLength: 3 })
    fc.assert(
      fc.property(fc.array(repeated, { maxLength: 40 }), (steps) => {
        const story = steps.map((calls, at) => [...new Set(calls), `new${at}=1`].join('+')).join(' ')
        expect(blocksAfter(story || 'a=1')).toBe(0)
      }),
    )
  })

  it('counts after notices that no channel took as well, which let no call be blocked', () => {
    let memory = NO_LOOP
    for (const step of stepsOf('a=1 '.repeat(11))) {
      const seen = observeStep(memory, step as readonly LoopCall[], POLICY)
      memory = seen.finding ? warningRefused(seen.memory, seen.finding, true) : seen.memory
      expect(mayRefuseAny(memory)).toBe(false)
    }
    expect(endingLoop(memory, POLICY)).toBeDefined()
  })
})

describe('a call that is made again beside a loop', () => {
  it('is not blocked as long as the model was warned about the other call alone', () => {
    const { memory, findings } = tell(`c=1 ${STUCK} c=1`)
    expect(new Set(findings.flatMap(({ warnedCalls }) => warnedCalls))).toEqual(new Set([callOf('a').call]))
    expect(refuse(memory, 'c+a').blocked.map((block) => block?.tool)).toEqual([undefined, 'a'])
  })
})
