/** A fault in one guard leaves the other guard working. */
import { describe, expect, it } from 'vitest'
import type { Session, Thread } from '../../src/core/session/session.ts'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { ChatMessage } from '../support/provider.ts'
import { racing, spoilingStore } from '../support/stores.ts'

const SESSION = { headers: { 'x-governor-session': 'one' } }

const faults = (guard: string) => expect.objectContaining({ kind: 'failed_open', reason: 'fault', guard })

const sameCall = () => ({ calls: [{ name: 'search', arguments: '{"query":"the same"}' }] })

describe('a fault in the loop guard', () => {
  const spoiled = (thread: Thread): Thread =>
    thread.loopState ? { ...thread, loopState: Object.assign({}, thread.loopState, { assistantHashes: null }) } : thread
  const spoil = (session: Session) => ({ ...session, threads: session.threads.map(spoiled) })

  it('leaves the budget guard working with all that is stored, and is counted for the loop guard', async () => {
    const { url, events, logs } = await startBoth(
      ({ json }) => (json.tool_choice === 'none' ? { text: 'All I know.' } : sameCall()),
      { budget: { max_iterations: 4 } },
      { store: spoilingStore(spoil) },
    )
    const { messages } = await runAgent(url, START, { ...SESSION, max: 2 })
    const { steps } = await runAgent(url, messages, SESSION)
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['3/4', '4/4', '4/4'])
    expect(steps.at(-1)?.governor).toMatchObject({
      terminal_reason: 'max_iterations',
      has_final_answer: true,
    })
    expect(events).toContainEqual(faults('loop_guard'))
    expect(events).not.toContainEqual(faults('budget'))
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toMatch(/governor_failed_open_total\{reason="fault",guard="loop_guard"\} [1-9]/)
    expect(logs.join('')).toContain('"guard":"loop_guard"')
  })

  it('affects only its request: later calls are observed again', async () => {
    let requests = 0
    const { url, events } = await startBoth(
      (_, number) => {
        requests = number
        return sameCall()
      },
      {},
      { store: spoilingStore((session) => (requests === 2 ? spoil(session) : session)) },
    )
    const { steps } = await runAgent(url, START, { ...SESSION, max: 5 })
    expect(steps.map(({ headers }) => headers.get('x-governor-loop')).at(-1)).toBe('repetition;count=3')
    expect(events).toContainEqual(faults('loop_guard'))
  })
})

it('a fault in the loop guard counts once for each request, even if the store repeats every change after a lost race', async () => {
  const spoil = (session: Session) => ({
    ...session,
    threads: session.threads.map((thread) =>
      thread.loopState
        ? { ...thread, loopState: Object.assign({}, thread.loopState, { assistantHashes: null }) }
        : thread,
    ),
  })
  const { url, events } = await startBoth(sameCall, {}, { store: racing(spoilingStore(spoil)) })
  await runAgent(url, START, { ...SESSION, max: 2 })
  expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([faults('loop_guard')])
})

describe('a fault in the budget guard', () => {
  it('leaves the loop guard working, and is counted for the budget guard', async () => {
    const reductions = Object.assign([], { find: null })
    const store = spoilingStore((session) => ({ ...session, reductions }))
    const { url, events } = await startBoth(sameCall, {}, { store })
    const { steps } = await runAgent(url, START, { ...SESSION, max: 4 })
    expect(steps.map(({ headers }) => headers.get('x-governor-loop')).at(-1)).toBe('repetition;count=3')
    expect(events).toContainEqual(faults('budget'))
    expect(events).not.toContainEqual(faults('loop_guard'))
  })
})

describe.each([
  ['a run', { max_iterations: 2 }, 'run'],
  ['a session', { session: { max_tokens: 200 } }, 'session'],
  ['a day', { day: { max_iterations: 2 } }, 'day'],
  ['a key', { day: { per: 'credential', max_tokens: 200 } }, 'day'],
  ['the rate', { velocity: { max_iterations: 2, over: '1m' } }, 'minute'],
])('a fault in the budget guard at a limit of %s', (_, budget, scope) => {
  const reductions = Object.assign([], { find: null })
  const answers = ({ json }: { readonly json: { readonly tool_choice?: unknown } }, number: number) =>
    json.tool_choice === 'none'
      ? { text: 'All I know.' }
      : { calls: [{ name: 'search', arguments: { query: `${number}` } }] }

  it('leaves a limit that is reached reached, for each request that comes', async () => {
    const store = spoilingStore((session) => ({ ...session, reductions }))
    const { url, events, provider } = await startBoth(answers, { budget }, { store, now: () => 1_760_000_000_000 })
    const { steps, messages } = await runAgent(url, START, { ...SESSION, max: 9 })
    expect(events).toContainEqual(faults('budget'))
    expect(steps.at(-1)).toMatchObject({ governor: { scope, has_final_answer: true }, finish: 'stop' })
    expect(provider.requests).toHaveLength(3)
    for (let at = 0; at < 3; at++) await callModel(url, messages, SESSION)
    expect(provider.requests).toHaveLength(3)
  })
})

it('results of 10 MB with a reminder that never ends are compared like any other results', async () => {
  const { url, events } = await startBoth(sameCall, { budget: { max_iterations: 5 } })
  let messages: ChatMessage[] = [...START]
  const iterations: (string | null)[] = []
  for (let at = 0; at < 3; at++) {
    const step = await callModel(url, messages, SESSION)
    iterations.push(step.headers.get('x-governor-iteration'))
    messages = afterStep(messages, step, () => `line ${at}\n<system-reminder>${'x '.repeat(5_000_000)}`)
  }
  expect(iterations).toEqual(['1/5', '2/5', '3/5'])
  expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
})
