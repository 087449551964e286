import { describe, expect, it } from 'vitest'
import { isStagnating } from '../../../src/core/loop/call-history.ts'
import { policyWith, tell } from './loop-story.ts'

describe('a loop in the history of calls', () => {
  it.each([
    {
      what: 'the third equal call with the same result in a row',
      story: 'a=1 b=1 c=1 c=1 c=1',
      found: ['4:repetition'],
    },
    {
      what: 'the third in the window with old calls in between',
      story: 'b=1 c=1 c=1 b=1 c=1',
      found: ['4:repetition'],
    },
    {
      what: 'the third with one look elsewhere in between each time',
      story: 'view=x grep=1 view=x find=2 view=x',
      found: ['4:repetition'],
    },
    {
      what: 'what is looked at each time, with one new look in between',
      story: 'scroll=ok see=1 scroll=ok see=2 scroll=ok see=3 scroll=ok see=4',
      found: ['4:repetition'],
    },
    {
      what: 'a look between whose results another call differs',
      story: 'search=x note=1 search=x note=2 search=x',
      found: ['4:repetition'],
    },
    {
      what: 'waiting for what stays the same for long',
      story: 'sleep?=ok mail=no '.repeat(4),
      found: ['7:ping_pong'],
    },
    { what: 'two calls in turn, two rounds long', story: 'a=1 b=2 a=1 b=2', found: ['3:ping_pong'] },
    { what: 'three in turn', story: 'a=1 b=2 c=3 a=1 b=2 c=3 a=1 b=2', found: ['7:cycle'] },
    {
      what: 'five responses in a row without anything new, in whatever order',
      story: 'a=1 b=2 c=3 d=4 f=6 c=3 a=1 d=4 b=2 f=6',
      found: ['9:cycle'],
    },
    {
      what: 'the sixth equal call in a row, whatever its results',
      story: 'now=1 now=2 now=3 now=4 now=5 now=6',
      found: ['5:same_call'],
    },
    {
      what: 'more calls side by side than a window holds, three times',
      story: 'a=1+b=1+c=1+d=1+e=1+f=1 '.repeat(3),
      found: ['12:repetition'],
    },
    {
      what: 'a change repeated with success',
      story: 'write!=ok write!=ok write!=ok',
      found: ['2:repetition'],
    },
    {
      what: 'a poll without an end',
      story: 'get?=run get?=run get?=run get?=run get?=run get?=run',
      found: ['5:repetition'],
    },
  ])('is found: $what', ({ story, found }) => {
    expect(tell(story).found).toEqual(found)
  })

  it.each([
    { what: 'two equal calls', story: 'a=1 a=1 b=1 c=1 d=1' },
    { what: 'alternating edits and tests', story: 'e1!=ok t=6 e2!=ok t=5 e3!=ok t=4 e4!=ok t=3' },
    {
      what: 'alternating edits and tests that all fail in the same way',
      story: 'e1!=ok t=no e2!=ok t=no e3!=ok t=no e4!=ok t=no',
    },
    { what: 'the same call after two new calls each time', story: 'v=x a=1 b=1 v=x c=1 d=1 v=x e=1 f=1 v=x' },
    { what: 'paging', story: 'p1=a p2=b p3=c p4=d p5=e p6=f p7=g' },
    { what: 'a batch with the same result each time', story: 'd1!=ok d2!=ok d3!=ok d4!=ok d5!=ok d6!=ok' },
    { what: 'a poll that continues for a while', story: 'get?=run get?=run get?=run get?=run get?=run' },
    {
      what: 'a poll whose results change',
      story: 'get?=1 get?=2 get?=3 get?=4 get?=5 get?=6 get?=7 get?=8 get?=9',
    },
    { what: 'two alternating calls, one with changing results', story: 'a=1 b=2 a=1 b=3 c=1 d=1' },
    {
      what: 'alternating calls that wait and look',
      story: 'sleep?=ok get=run sleep?=ok get=run sleep?=ok get=done',
    },
    {
      what: 'waiting for a while for a result that stays the same',
      story: 'sleep?=ok mail=no sleep?=ok mail=no sleep?=ok mail=no',
    },
    {
      what: 'five responses, one of them with a new call too',
      story: 'a=1 b=2 c=3 d=4 f=6 c=3 a=1 d=4 b=2 f=6+e=5',
    },
    {
      what: 'five equal calls in a row with other results each time',
      story: 'now=1 now=2 now=3 now=4 now=5',
    },
    { what: 'the same parallel calls, twice', story: 'a=1+b=2 a=1+b=2 c=1' },
    { what: 'many parallel calls, twice', story: 'a=1+b=1+c=1+d=1+e=1+f=1 '.repeat(2) },
    {
      what: 'one call beside many parallel calls that are new each time',
      story: 'a=1+b=1+c=1+d=1+e=1+f=1 a=1+g=1+h=1+i=1+j=1+k=1 a=1+l=1+m=1+n=1+o=1+p=1',
    },
    { what: 'equal calls of one response', story: 'a=1+a=1+a=1+a=1+a=1+a=1' },
    {
      what: 'equal calls that are further apart than the window',
      story: 'a=1 a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1 j=1 a=1',
    },
    { what: 'equal calls of tools with other results each time', story: 'a=1 b=1 a=2 b=2 a=3 b=3' },
  ])('is not found: $what', ({ story }) => {
    expect(tell(story).found).toEqual([])
  })

  it('has nothing new in what its first response made beside its call, but has in what each response makes', () => {
    const of = (story: string) => tell(story).findings.map(({ at, hasNews }) => [at, hasNews])
    expect(of('a=1+b=1 '.repeat(5))).toEqual([
      [4, false],
      [8, false],
    ])
    expect(of('a=1+n1=1 a=1+n2=2 a=1+n3=3 a=1+n4=4 a=1+n5=5')).toEqual([[4, true]])
    // After a warning two are enough, whose second response has yet to show what stands beside.
    expect(of('x=1 x=1 x=1 a=1+n1=1 a=1+n2=2 a=1+n3=3 a=1+n4=4')).toEqual([
      [2, false],
      [5, true],
    ])
    expect(of('a=1+edit!=1 a=1 b=1 a=1')).toEqual([])
  })

  it('counts equal calls of one response as one', () => {
    expect(tell('a=1+a=1+a=1 a=1+a=1 a=1').found).toEqual(['5:repetition'])
    expect(tell('a=1+b=2 a=1+b=2 a=1+b=2').found).toEqual(['4:repetition'])
  })

  it('is found at most once per response, by the first call that completes it', () => {
    expect(tell('a=1 a=1 b=2 b=2 a=1+b=2').found).toEqual(['4:repetition'])
  })

  it('is counted from zero after it was found, while earlier calls stay known', () => {
    expect(tell('a=1 '.repeat(7)).found).toEqual(['2:repetition', '4:repetition', '6:repetition'])
    expect(tell('a=1 b=2 '.repeat(4)).found).toEqual(['3:ping_pong', '5:ping_pong', '7:ping_pong'])
    expect(tell('a=1 b=2 c=3 '.repeat(6)).found).toEqual(['7:cycle', '11:cycle', '15:cycle'])
  })

  it('needs one repetition less after a warning about another loop, but never fewer than two calls', () => {
    expect(tell('a=1 a=1 a=1 b=1 c=1 c=1').found).toEqual(['2:repetition', '5:repetition'])
    const policy = policyWith({ repetition_threshold: 2 })
    expect(tell('a=1 a=1 b=1 c=1 b=1', policy).found).toEqual(['1:repetition', '4:repetition'])
    expect(tell('a=1 a=1 b=1 a=1', policy).found).toEqual(['1:repetition'])
  })

  it('gets one notice if something new came in between, however often it repeats', () => {
    const steps = (count: number, step: (at: number) => string) =>
      Array.from({ length: count }, (_, at) => step(at)).join(' ')
    expect(tell(steps(30, (at) => `todo=list work${at}=done`)).found).toEqual(['4:repetition'])
    expect(tell(steps(30, (at) => `page=${at}`)).found).toEqual(['5:same_call'])
    expect(tell(steps(10, (at) => `down=ok down=ok down=ok see=${at}`)).found).toEqual(['2:repetition'])
  })

  it('gets another notice if it continues without anything new after the first notice', () => {
    expect(tell('a=1 a=1 a=1 x=1 y=1 a=1 a=1 z=1 a=1 a=1 a=1 a=1').found).toEqual(['2:repetition', '11:repetition'])
  })

  it('of a polling call gets the next notice when the number of calls has doubled', () => {
    expect(tell('get?=run '.repeat(50)).found).toEqual([5, 11, 23, 47].map((at) => `${at}:repetition`))
    expect(tell('get?=run '.repeat(50)).findings.map(({ count }) => count)).toEqual([6, 12, 24, 48])
    expect(tell('sleep?=ok mail=no '.repeat(20)).found).toEqual([7, 15, 31].map((at) => `${at}:ping_pong`))
  })

  it('states its pattern, its tools, its count and its span', () => {
    const [row] = tell('a=1 a=1 a=1').findings
    expect(row).toMatchObject({ pattern: 'repetition', tools: ['a'], count: 3, span: 3 })
    const [window] = tell('v=x g=1 v=x f=2 v=x').findings
    expect(window).toMatchObject({ pattern: 'repetition', tools: ['v'], count: 3, span: 5 })
    const [cycle] = tell('a=1 b=2 c=3 a=1 b=2 c=3 a=1 b=2').findings
    expect(cycle).toMatchObject({ pattern: 'cycle', tools: ['c', 'a', 'b'], count: 5, span: 5 })
  })
})

describe('the settings of a loop', () => {
  it('set how many equal calls make a loop', () => {
    expect(tell('a=1 '.repeat(5), policyWith({ repetition_threshold: 5 })).found).toEqual(['4:repetition'])
    expect(tell('a=1 a=1', policyWith({ repetition_threshold: 2 })).found).toEqual(['1:repetition'])
  })

  it('may require more equal calls than calls with different results', () => {
    const policy = policyWith({ repetition_threshold: 8, standstill: 20 })
    expect(tell('a=1 '.repeat(8), policy).found).toEqual(['5:same_call', '6:repetition'])
  })

  it('set how many responses without anything new make a loop', () => {
    const story = 'a=1 b=2 c=3 d=4 '.repeat(3)
    expect(tell(story, policyWith({ standstill: 6 })).found).toEqual(['9:cycle'])
  })

  it('counts equal calls in a row beyond the window', () => {
    expect(
      tell('a=1 '.repeat(13), policyWith({ repetition_threshold: 13, same_call_any_result: 20, standstill: 20 })).found,
    ).toEqual(['12:repetition'])
  })

  it('set how many more calls polling may make', () => {
    const story = 'get?=run '.repeat(9)
    expect(tell(story, policyWith({ poll_multiplier: 1 })).found).toEqual(['2:repetition', '5:repetition'])
    expect(tell(story, policyWith({ poll_multiplier: 3 })).found).toEqual(['8:repetition'])
  })
})

describe('a window without progress', () => {
  it.each([
    ['a=1 a=1 a=1 a=1', false],
    ['a=1 a=1 a=1 a=1 a=1', false],
    ['a=1 a=1 a=1 a=1 a=1 a=1', true],
    ['a=1 b=1 a=1 b=1 a=1 b=1', false],
    ['a=1 b=1 a=1 b=1 a=1 b=1 a=1', true],
    ['a=1 a=1 a=1 a=1 a=1 a=1 a=2', false],
    ['a=2 a=1 a=1 a=1 a=1 a=1', false],
  ])('is one whose last five calls, with their results, were made before: %s', (story, isSo) => {
    expect(isStagnating(tell(story).memory.history)).toBe(isSo)
  })
})
