import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { advance, EMPTY_TRANSCRIPT } from '../../../src/core/conversation/transcript.ts'
import { mayBlock } from '../../../src/core/loop/escalation.ts'
import {
  afterNotice,
  INITIAL_LOOP_STATE,
  type LoopState,
  observeTranscript,
} from '../../../src/core/loop/loop-state.ts'
import type { LoopPolicy } from '../../../src/core/loop/patterns.ts'
import { conversationOf, type Message, registry, user } from '../transcript.ts'
import { POLICY, policyWith, tell } from './loop-story.ts'

/** A response with one call, and the call's result. */
type Step = readonly [name: string, result: string, argumentsText?: string]

function messagesOf(steps: readonly Step[]): Message[] {
  const messages = steps.flatMap(([name, content, text = '{}'], at): Message[] => [
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: `c${at}`, type: 'function', function: { name, arguments: text } }],
    },
    { role: 'tool', tool_call_id: `c${at}`, content },
  ])
  return [user('go'), ...messages]
}

function observed(loopState: LoopState, messages: readonly Message[], policy: LoopPolicy): LoopState {
  const conversation = conversationOf(messages)
  const state = advance(EMPTY_TRANSCRIPT, conversation, conversation.length - 1, registry)
  return observeTranscript(loopState, { conversation, state, registry, previousStep: undefined }, policy)
}

interface Followed {
  /** The index of the step after which the model got a notice, and its pattern. */
  readonly notices: readonly string[]
  /** The number of steps after which a call may be blocked first; unset if never. */
  readonly blocksAfter: number | undefined
}

/** Follows a run request by request. `from`: how many steps the first request shows; `isDelivered`: the model gets notices. */
function follow(
  steps: readonly Step[],
  { from = 1, isDelivered = true, shown = (_: number) => steps, policy = POLICY } = {},
): Followed {
  let loopState = INITIAL_LOOP_STATE
  const notices: string[] = []
  let blocksAfter: number | undefined
  for (let end = from; end <= steps.length; end++) {
    loopState = observed(loopState, messagesOf(shown(end).slice(0, end)), policy)
    const { finding } = loopState
    if (finding) notices.push(`${end - 1}:${finding.pattern}`)
    if (isDelivered) loopState = afterNotice(loopState)
    if (mayBlock(loopState.memory, policy, 0)) blocksAfter ??= end
  }
  return { notices, blocksAfter }
}

const two = (at: number) => String(at % 60).padStart(2, '0')
/** What a call may be there to bring, another one each time. */
const VALUES: Readonly<Record<string, (at: number) => string>> = {
  'a UUID': (at) => `123e4567-e89b-42d3-a456-4266141740${two(at)}`,
  'a hex id': (at) => (0x3f2a1b4 + 977 * at).toString(16),
  'a long number': (at) => String(4_711_815 + at),
  'an address': (at) => `0x${(0x7f3a5c0010 + 16 * at).toString(16)}`,
  'a time of day': (at) => `12:${two(at)}:00`,
  'a time stamp': (at) => `2026-03-04T12:${two(at)}:00Z`,
  'a date': (at) => `2026-03-${two(1 + (at % 28))}`,
  'a duration': (at) => `${60 - at} minutes`,
  'a measured time': (at) => `${at}.25 ms`,
  'a process id': (at) => `pid ${4711 + at}`,
  'a request id': (at) => `request_id: r-${at}`,
  'a step of so many': (at) => `step ${at + 1}/40`,
  'a turn of so many': (at) => `Turn ${at + 1} of 40`,
  'an attempt': (at) => `Attempt #${at + 1}`,
}
const AROUND: readonly ((text: string) => string)[] = [
  (text) => text,
  (text) => `saved as ${text}`,
  (text) => `{"value": "${text}", "unit": "C", "reading": 21.5}`,
  (text) => `[main ${text}] work in progress\n 1 file changed, 1 insertion(+)`,
]

describe('a result that differs only in what is masked', () => {
  it.each(Object.entries(VALUES))(
    'is told about once and never blocked, alone or in turn with other calls, in any text around it: %s',
    (_, valueAt) => {
      const others = fc.array(fc.constantFrom('scroll', 'look', 'next'), { maxLength: 3 })
      // Every value in every text: what is random is only what is beside them.
      for (const text of AROUND)
        fc.assert(
          fc.property(others, fc.integer({ min: 1, max: 12 }), (tools, from) => {
            const steps = Array.from({ length: 30 }, (_, at): Step[] => [
              ...tools.map((name): Step => [name, 'done as before, see the picture']),
              ['bring', text(valueAt(at))],
            ]).flat()
            const { notices, blocksAfter } = follow(steps, { from })
            expect(blocksAfter).toBeUndefined()
            // At most once for each call.
            expect(notices.length).toBeLessThanOrEqual(1 + new Set(tools).size)
          }),
          { numRuns: 1 },
        )
    },
  )

  it.each<[string, (at: number) => string]>([
    [
      'codex',
      (at) =>
        `Chunk ID: ${(0x70e5d1 + at).toString(16)}\nWall time: 0.00${two(at)} seconds\nOutput:\nnothing to see here`,
    ],
    ['codex, of a script,', (at) => `Script completed\nWall time ${at}.${at} seconds\nOutput:\n\nnothing to see here`],
    [
      'any harness that heads the output',
      (at) => `Exit code: 0\nFinished in ${7 * at} ms at 10:00\nOutput:\nnothing to see here`,
    ],
    [
      'any harness beside the output',
      (at) => `{"output":"nothing to see here","metadata":{"exit_code":0,"duration_seconds":${at / 8}}}`,
    ],
    ['codex in JSON', (at) => `{"chunk_id":"${at}a","wall_time_seconds":${at}.2e-7,"output":"nothing to see here"}`],
    [
      'Claude Code',
      (at) =>
        `nothing to see here\n\n<system-reminder>\n<total_tokens>${900 - at} tokens left</total_tokens>\n</system-reminder>`,
    ],
    ['gemini-cli', (at) => `Output: nothing to see here\nProcess Group PGID: ${15_309 + 3 * at}`],
    ['Copilot CLI', (at) => `nothing to see here\n<shellId: ${at} completed with exit code 0>`],
  ])('is blocked like an equal one if %s adds the difference to every result', (_, resultAt) => {
    const loop = (result: (at: number) => string) =>
      follow(Array.from({ length: 10 }, (_, at): Step => ['look', result(at)]))
    const equal = loop(() => 'nothing to see here')
    expect(equal).toEqual({
      notices: ['2:repetition', '4:repetition', '6:repetition', '8:repetition'],
      blocksAfter: 6,
    })
    expect(loop(resultAt)).toEqual(equal)
  })

  it('leaves no loop of other calls that may be blocked', () => {
    const { findings, memory } = tell('a=1 b=x~1 a=1 b=x~2 a=1 b=x~3 a=1 b=x~4 a=1 b=x~5 a=1 b=x~6')
    expect(findings).toHaveLength(1)
    expect(mayBlock(memory, POLICY, 0)).toBe(false)
  })
})

describe('the one sentence of the OpenAI Agents SDK for every failure of a tool', () => {
  const failures = (text: string) => Array.from({ length: 20 }, (): Step => ['search', text])
  const SENTENCE = 'An error occurred while running the tool. Please try again.'

  it('is no equal result: the model is told once, and no call is blocked', () => {
    const { notices, blocksAfter } = follow(failures(SENTENCE))
    expect(notices).toEqual(['2:repetition'])
    expect(blocksAfter).toBeUndefined()
  })

  it('is one with what went wrong', () => {
    expect(follow(failures(`${SENTENCE} Error: the file is missing`)).blocksAfter).toBe(6)
  })
})

describe('a result that stands for several different calls when memory was lost', () => {
  const placeholder = fc.constantFrom('[Old tool result content cleared]', '[cleared]', '', 'ok', '…')

  it('never blocks work, however many of the results were replaced and wherever Governor begins to read', () => {
    const tool = fc.constantFrom('read', 'test', 'edit', 'list')
    const steps = fc.array(tool, { minLength: 8, maxLength: 40 })
    const policies = fc.constantFrom(POLICY, policyWith({ max_warnings_before_block: 1 }))
    fc.assert(
      fc.property(
        steps,
        placeholder,
        fc.nat({ max: 30 }),
        fc.nat({ max: 4 }),
        policies,
        (tools, text, from, kept, policy) => {
          // Each result is new when it comes.
          const real = tools.map((name, at): Step => [name, `result ${'x'.repeat(at)}`])
          const shown = (end: number) =>
            real.map(([name, result], at): Step => [name, at < end - 1 - kept ? text : result])
          const { blocksAfter } = follow(real, { from: Math.min(from + 1, real.length), shown, policy })
          expect(blocksAfter).toBeUndefined()
        },
      ),
      { numRuns: 200 },
    )
  })

  it('is told about at most once, and may be blocked again once the loop goes on with results that came anew', () => {
    const calls = (count: number): Step[] =>
      Array.from({ length: count }, (_, at): Step => [at % 2 ? 'read' : 'list', '[cleared]'])
    expect(follow(calls(12), { from: 12 }).notices.length).toBeLessThanOrEqual(1)
    expect(follow(calls(12), { from: 12 }).blocksAfter).toBeUndefined()
    expect(follow(calls(40), { from: 12 }).blocksAfter).toBeGreaterThan(12)
  })
})

describe('a call', () => {
  it('is never blocked in a loop that the model was not warned about, wherever Governor begins to read', () => {
    const step = fc.constantFrom<Step>(['a', 'the same'], ['b', 'as before'], ['c', 'ok'], ['status', 'waiting'])
    fc.assert(
      fc.property(fc.array(step, { minLength: 4, maxLength: 40 }), fc.nat({ max: 39 }), (steps, from) => {
        const begin = Math.min(from + 1, steps.length)
        expect(follow(steps, { from: begin, isDelivered: false }).blocksAfter).toBeUndefined()
        const { notices, blocksAfter } = follow(steps, { from: begin })
        if (blocksAfter !== undefined) expect(notices.length).toBeGreaterThanOrEqual(2)
      }),
      { numRuns: 200 },
    )
  })

  it('is warned about first when Governor begins to read in the middle of its loop', () => {
    const steps = Array.from({ length: 20 }, (): Step => ['look', 'nothing to see here'])
    expect(follow(steps, { from: 12 })).toEqual({
      notices: ['11:repetition', '13:repetition', '15:repetition', '17:repetition', '19:repetition'],
      blocksAfter: 15,
    })
  })
})
