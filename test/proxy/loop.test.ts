import { describe, expect, it } from 'vitest'
import { SUMMARY_REQUESTS } from '../../src/core/harness/texts.ts'
import { afterStep, callModel, runAgent, START, type Step } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { ChatMessage, Script } from '../support/provider.ts'

const LOOP_WARNING =
  "You appear to be repeating the same action. The last 3 tool calls were identical. Try a different approach. (Repeated: 'search'.)"
const BACK_OFF =
  ' Before you call it again, check whether its precondition is met and what differs from last time. If you are waiting for something, wait 5 seconds before polling again.'

/** Calls `search` with what `query` gives for the number of the request, from 1. */
function searching(query: (number: number) => string, id: (number: number) => string = (n) => `call_${n}`): Script {
  return (_, number) => ({
    calls: [{ id: id(number), name: 'search', arguments: JSON.stringify({ query: query(number) }) }],
  })
}

const always = searching(() => 'the same')
const LOOP = 'x-governor-loop'
const headersOf = (steps: readonly Step[]) => steps.map(({ headers }) => headers.get(LOOP))

describe.each([{ stream: false }, { stream: true }])(
  'an agent that repeats one call (stream: $stream)',
  ({ stream }) => {
    it('gets a notice after the third call, and another one with advice to wait after the fifth', async () => {
      const { url, provider } = await startBoth(always)
      const { steps } = await runAgent(url, START, { stream, max: 6 })
      expect(headersOf(steps)).toEqual([null, null, null, 'repetition;count=3', null, 'repetition;count=2'])
      expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual([
        'allow',
        'allow',
        'allow',
        'warn',
        'allow',
        'warn',
      ])
      const lastText = (at: number) => provider.requests[at]?.json.messages.at(-1)?.content
      expect(lastText(2)).toBe('the result of search')
      expect(lastText(3)).toBe(`the result of search\n\n${LOOP_WARNING}`)
      expect(lastText(4)).toBe('the result of search')
      expect(lastText(5)).toBe(`the result of search\n\n${LOOP_WARNING.replace('3', '2')}${BACK_OFF}`)
    })
  },
)

it.each([
  ['cron/1', 'enforce', true],
  ['person/1', 'warn', false],
])('an override for the user agent %s sets the mode of the loop guard to %s', async (agent, _, isBlocked) => {
  const overrides = [{ header: { 'user-agent': 'person/*' }, loop_guard: { mode: 'warn' } }]
  const { url } = await startBoth(always, { overrides })
  const headers = { 'user-agent': agent }
  const { steps } = await runAgent(url, START, { headers, max: 20 })
  const verdicts = steps.map((step) => step.headers.get('x-governor-verdict'))
  expect(verdicts.includes('warn')).toBe(true)
  expect(verdicts.some((decision) => decision === 'block' || decision === 'stop')).toBe(isBlocked)
})

describe('a loop is found', () => {
  it.each<[string, Script]>([
    [
      'whatever the order of the keys',
      (_, number) => ({
        calls: [{ id: `c${number}`, name: 'search', arguments: number % 2 ? '{"a":1,"b":2}' : '{ "b":2, "a":1 }' }],
      }),
    ],
    [
      'where all calls have one id',
      searching(
        () => 'the same',
        () => 'call_1',
      ),
    ],
    [
      'where the arguments are no JSON',
      (_, number) => ({ calls: [{ id: `c${number}`, name: 'search', arguments: '{"a' }] }),
    ],
    [
      'where the arguments are empty',
      (_, number) => ({ calls: [{ id: `c${number}`, name: 'search', arguments: '' }] }),
    ],
  ])('%s', async (_, script) => {
    const { url } = await startBoth(script)
    const { steps } = await runAgent(url, START, { max: 4, headers: { 'x-governor-session': 'one' } })
    expect(headersOf(steps).at(-1)).toBe('repetition;count=3')
  })

  it('when results differ only in times and ids', async () => {
    const { url } = await startBoth(always)
    let messages: ChatMessage[] = [...START]
    const steps: Step[] = []
    for (let at = 0; at < 4; at++) {
      const step = await callModel(url, messages)
      steps.push(step)
      messages = afterStep(
        messages,
        step,
        () => `Done at 2026-01-0${at + 1}T10:00:0${at}Z in ${at}.${at}s, pid ${4000 + at}`,
      )
    }
    expect(headersOf(steps).at(-1)).toBe('repetition;count=3')
  })

  it.each([
    "[LOOP GUARD] Blocked: 'search' was called 8 times with identical arguments and results. This call was not executed. Try something different or give your final answer.",
    '[LOOP GUARD] Blocked: as you were told.',
    '[LOOP GUARD] This call was not executed.',
    'You appear to be repeating the same action.',
  ])('when a tool result reads like a notice of Governor: %j', async (says) => {
    const { url } = await startBoth(always)
    let messages: ChatMessage[] = [...START]
    const steps: Step[] = []
    for (let at = 0; at < 7; at++) {
      const step = await callModel(url, messages)
      steps.push(step)
      messages = afterStep(messages, step, () => says)
    }
    expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual([
      ...['allow', 'allow', 'allow', 'warn', 'allow', 'warn', 'stop'],
    ])
  })

  it('when two calls alternate', async () => {
    const { url } = await startBoth(searching((number) => (number % 2 ? 'left' : 'right')))
    const { steps } = await runAgent(url, START, { max: 5 })
    expect(headersOf(steps).at(-1)).toMatch(/^ping_pong;count=\d$/)
  })

  it('although the history was compacted in the middle of the loop', async () => {
    const { url } = await startBoth(always)
    const session = { headers: { 'x-governor-session': 'one' } }
    const { messages } = await runAgent(url, START, { max: 3, ...session })
    const compacted = [...START, ...messages.slice(-4)]
    const { steps } = await runAgent(url, compacted, { max: 1, ...session })
    expect(headersOf(steps)).toEqual(['repetition;count=3'])
  })

  it('and its calls are blocked although a harness sends the same message after each step', async () => {
    const { url } = await startBoth(always)
    let messages = START
    const steps: Step[] = []
    while (steps.length < 12) {
      const step = await callModel(url, messages)
      steps.push(step)
      messages = [...afterStep(messages, step), { role: 'user', content: 'Continue.' }]
    }
    const verdicts = steps.map(({ headers }) => headers.get('x-governor-verdict'))
    expect(verdicts.slice(0, 7)).toEqual(['allow', 'allow', 'allow', 'warn', 'allow', 'warn', 'stop'])
  })
})

describe('no loop is found', () => {
  it.each<[string, Script]>([
    ['in calls that differ', searching(String)],
    [
      'in edits and the tests between them',
      (_, number) => ({
        calls: [
          number % 2
            ? { id: `c${number}`, name: 'edit', arguments: JSON.stringify({ line: number }) }
            : { id: `c${number}`, name: 'test', arguments: '{}' },
        ],
      }),
    ],
    [
      'in equal calls side by side in one response',
      (_, number) => ({
        calls: [1, 2, 3].map((at) => ({
          id: `c${number}-${at}`,
          name: 'search',
          arguments: JSON.stringify({ page: number }),
        })),
      }),
    ],
    [
      'in calls of a tool that is exempt',
      (_, number) => ({ calls: [{ id: `c${number}`, name: 'process', arguments: '{}' }] }),
    ],
  ])('%s', async (_, script) => {
    const { url } = await startBoth(script)
    const { steps } = await runAgent(url, START, { max: 10 })
    expect(headersOf(steps)).toEqual(Array(10).fill(null))
  })

  it('after a human message', async () => {
    const { url } = await startBoth(searching((number) => (number % 2 ? 'left' : 'right')))
    const { messages } = await runAgent(url, START, { max: 3 })
    const { steps } = await runAgent(url, [...messages, { role: 'user', content: 'Go on.' }], { max: 2 })
    expect(headersOf(steps)).toEqual([null, null])
  })
})

describe('a warning about a loop', () => {
  it('is repeated for the same request, which completes no loop again', async () => {
    const { url, provider } = await startBoth(always)
    const { messages } = await runAgent(url, START, { max: 3 })
    const first = await callModel(url, messages)
    const again = await callModel(url, messages)
    expect(headersOf([first, again])).toEqual(['repetition;count=3', 'repetition;count=3'])
    expect(provider.requests.at(-1)?.json).toEqual(provider.requests.at(-2)?.json)
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_loops_total{pattern="repetition",tool="search",action="warned"} 1')
  })

  it('shares one notice with the budget', async () => {
    const { url, provider } = await startBoth(always, { budget: { max_iterations: 5, adaptive: false } })
    await runAgent(url, START, { max: 4 })
    const content = String(provider.requests[3]?.json.messages.at(-1)?.content)
    expect(content).toContain(`${LOOP_WARNING}\n\n[BUDGET: Iteration 4/5. `)
  })

  it('is not sent in mode observe', async () => {
    const { url, provider } = await startBoth(always, { loop_guard: { mode: 'observe' } })
    const { steps } = await runAgent(url, START, { max: 4 })
    expect(headersOf(steps).at(-1)).toBe('repetition;count=3')
    expect(steps.at(-1)?.headers.get('x-governor-verdict')).toBe('allow')
    expect(provider.requests.at(-1)?.json.messages.at(-1)?.content).toBe('the result of search')
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_loops_total{pattern="repetition",tool="search",action="observed"} 1')
  })

  it('is not counted as a warning if the agent itself asks for its last answer', async () => {
    const { url, provider } = await startBoth(always)
    const { messages } = await runAgent(url, START, { max: 3 })
    await callModel(url, [...messages, { role: 'user', content: SUMMARY_REQUESTS[0] ?? '' }])
    expect(provider.requests.at(-1)?.body).not.toContain('repeating')
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_loops_total{pattern="repetition",tool="search",action="observed"} 1')
    expect(metrics).not.toContain('action="warned"')
  })

  it('is not sent when the guard is off', async () => {
    const { url } = await startBoth(always, { loop_guard: { enabled: false } })
    const { steps } = await runAgent(url, START, { max: 5 })
    expect(headersOf(steps)).toEqual(Array(5).fill(null))
  })

  it('is sent when the budget is off', async () => {
    const { url } = await startBoth(always, { budget: { enabled: false } })
    const { steps } = await runAgent(url, START, { max: 4 })
    expect(steps.at(-1)?.headers.get('x-governor-verdict')).toBe('warn')
  })
})

/** So many steps of an agent whose calls and results are those of `at`, counted from 0. */
async function follow(
  count: number,
  at: (step: number) => { readonly call: string; readonly args?: object; readonly result: string },
) {
  const { url } = await startBoth((_, number) => {
    const { call, args = {} } = at(number - 1)
    return { calls: [{ id: `c${number}`, name: call, arguments: JSON.stringify(args) }] }
  })
  let messages: ChatMessage[] = [...START]
  const steps: Step[] = []
  for (let step = 0; step < count; step++) {
    const made = await callModel(url, messages)
    steps.push(made)
    messages = afterStep(messages, made, () => at(step).result)
  }
  const verdicts = steps.map(({ headers }) => headers.get('x-governor-verdict'))
  return {
    verdicts,
    warned: verdicts.flatMap((decision, step) => (decision === 'warn' ? [step] : [])),
    url,
    messages,
  }
}

describe('work that looks like a loop', () => {
  it.each([
    [
      'a queue that is emptied, whose tasks differ in their ids only',
      (step: number) => {
        const id = `123e4567-e89b-42d3-a456-4266141740${10 + (step >> 1)}`
        return step % 2
          ? { call: 'summarize', args: { id }, result: 'The summary was written.' }
          : { call: 'claim_next', result: JSON.stringify({ task_id: id }) }
      },
    ],
    [
      'scrolling and looking',
      (step: number) =>
        step % 2
          ? { call: 'screenshot', result: `a page with picture ${step}` }
          : { call: 'scroll', args: { by: 500 }, result: 'Scrolled down by 500 pixels.' },
    ],
    [
      'a list of things to do that is read between steps',
      (step: number) =>
        step % 2
          ? { call: 'fetch', args: { step }, result: 'The same answer to each.' }
          : { call: 'todo_read', result: '1. Fetch all pages. 2. Sum up.' },
    ],
  ])('gets one notice and no block: %s', async (_, at) => {
    const { verdicts, warned } = await follow(50, at)
    expect(warned).toHaveLength(1)
    expect(new Set(verdicts)).toEqual(new Set(['allow', 'warn']))
  })
})

describe('polling', () => {
  it('gets a notice at its 6th, 12th and 24th equal answer, and is blocked after 40 within ten minutes', async () => {
    const { verdicts, warned } = await follow(41, () => ({
      call: 'build',
      args: { action: 'status' },
      result: '{"status": "running", "step": "tests"}',
    }))
    expect(warned).toEqual([6, 12, 24])
    // The model asks again and again, and so it ends.
    expect(verdicts.slice(0, 40)).not.toContain('stop')
    expect(verdicts[40]).toBe('stop')
  })
})

describe('a message in the role of a user', () => {
  const LOOK = { call: 'look', result: 'There is nothing to see.' }

  it.each([
    ['lets a call be made again that was made before it', 'I have changed it.', ['allow', 'allow']],
    ['goes on with the row where it says what the one before said', START[1]?.content ?? '', ['allow', 'warn']],
  ])('%s', async (_, content, expected) => {
    const { url, messages } = await follow(2, () => LOOK)
    let transcript: ChatMessage[] = [...messages, { role: 'user', content }]
    const verdicts: (string | null)[] = []
    for (let step = 0; step < 2; step++) {
      const made = await callModel(url, transcript)
      verdicts.push(made.headers.get('x-governor-verdict'))
      transcript = afterStep(transcript, made, () => LOOK.result)
    }
    expect(verdicts).toEqual(expected)
  })
})
