import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { firstSession } from '../support/admin.ts'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { ASKED, runMessagesAgent } from '../support/messages.ts'
import type { Answer, Received, Script } from '../support/provider.ts'
import { runResponses } from '../support/responses-agent.ts'
import { mayCall } from '../support/scripts.ts'

const LOOP_NOTICE = /You appear to be repeating|LOOP GUARD/
const NOTICE = /\[BUDGET: |You appear to be repeating|\[LOOP GUARD\]/

const said = ({ body }: Received) => NOTICE.test(body.toString())

interface ObservedStep {
  readonly headers: Headers
}

const NAMED = { 'x-session-id': 'one' }

/** The agents of the three APIs; each ends after `max` answers. */
const AGENTS: Readonly<
  Record<string, (url: string, stream: boolean, max: number) => Promise<readonly ObservedStep[]>>
> = {
  chat: async (url, stream, max) => (await runAgent(url, START, { stream, max, headers: NAMED })).steps,
  messages: async (url, stream, max) => (await runMessagesAgent(url, ASKED, { stream, max, headers: NAMED })).steps,
  responses: async (url, stream, max) => (await runResponses(url, 'Go.', { stream, max, headers: NAMED })).steps,
}

const SAME: Answer = { calls: [{ name: 'search', arguments: { query: 'the same' } }] }

/**
 * A model that makes one call for ever; its provider answers the n-th request with a notice with the n-th of these statuses,
 * where it is an error. A header says what the model was told.
 */
function failing(statuses: readonly number[]): Script {
  let notices = 0
  return (request) => {
    const isTold = said(request)
    const calls = mayCall(request) && request.json.tools !== undefined
    const status = isTold ? (statuses[notices++] ?? 200) : 200
    // A fault in place of the last answer goes to the client, and these clients do not send a request again.
    if (status !== 200 && (calls || status !== 500))
      return { status, body: { error: { message: 'Something went wrong.' } } }
    const headers = { 'x-told': String(isTold) }
    return calls ? { ...SAME, headers } : { text: 'I stop.', headers }
  }
}

const BUDGET = {
  max_iterations: 40,
  adaptive: false,
  caution_threshold: 0.05,
  warning_threshold: 1,
  escalate: false,
}

const ways = Object.keys(AGENTS).flatMap((api) => [false, true].map((stream) => ({ api, stream })))

describe.each(ways)('a notice that the provider refuses over $api (stream: $stream)', ({ api, stream }) => {
  const agent = AGENTS[api]
  if (!agent) throw new Error('no such agent')
  const channels = ['auto', 'tool_result', 'user', ...(api === 'chat' ? ['system'] : [])]

  it.each(channels)('goes by channel %s again after one 500, also while others come now and then', async (channel) => {
    const { url, events, provider } = await startBoth(failing([500, 200, 500, 200, 500, 200, 500]), {
      budget: { ...BUDGET, channel },
      loop_guard: { enabled: false },
    })
    const steps = await agent(url, stream, 11)
    expect(events.filter(({ kind }) => kind === 'alteration_refused')).toEqual([])
    const told = steps.map(({ headers }) => headers.get('x-told'))
    expect(told.slice(1)).toEqual(['false', 'true', 'false', 'true', 'false', 'true', 'false', 'true', 'true', 'true'])
    const used = events.flatMap((event) => (event.kind === 'notice' ? [event.channel] : []))
    expect(used).toEqual(Array(6).fill(channel))
    expect(provider.requests).toHaveLength(11 + 4)
  })

  it.each(channels)(
    'stays out of channel %s for minutes after two 500s in a row, for an hour after one 400',
    async (channel) => {
      for (const { statuses, minutes } of [
        { statuses: [500, 500], minutes: 5 },
        { statuses: [422], minutes: 60 },
      ]) {
        let time = 1_760_000_000_000
        const { url, events } = await startBoth(
          failing(statuses),
          { budget: { ...BUDGET, channel }, loop_guard: { enabled: false } },
          { now: () => time },
        )
        const used = () => events.flatMap((event) => (event.kind === 'notice' ? [event.channel] : []))
        await agent(url, stream, 6)
        expect(events.filter(({ kind }) => kind === 'alteration_refused')).toHaveLength(1)
        expect(used().length).toBeGreaterThan(0)
        expect(used()).not.toContain(channel)
        time += minutes * 60_000 - 1
        await agent(url, stream, 4)
        expect(used()).not.toContain(channel)
        time += 1
        await agent(url, stream, 4)
        expect(used()).toContain(channel)
      }
    },
  )

  it('is a warning in header, log and record only where the model got it, and a run is blocked or stopped only after two of them, unless it takes none', async () => {
    const statuses = fc.array(fc.constantFrom(200, 400, 422, 500), { maxLength: 14 })
    await fc.assert(
      fc.asyncProperty(statuses, fc.constantFrom(...channels), async (plan, channel) => {
        const { url, events, provider } = await startBoth(failing(plan), { budget: { ...BUDGET, channel } })
        const steps = await agent(url, stream, 14)
        const verdicts = steps.map(({ headers }) => headers.get('x-governor-verdict'))
        const told = steps.map(({ headers }) => headers.get('x-told') === 'true')
        const blocked = verdicts.findIndex((verdict) => verdict === 'block' || verdict === 'stop')
        const before = blocked === -1 ? verdicts : verdicts.slice(0, blocked)
        expect(before).toEqual(told.slice(0, before.length).map((isTold) => (isTold ? 'warn' : 'allow')))
        const { iterations } = await firstSession(url)
        expect(iterations.map(({ verdict }) => verdict).slice(0, before.length)).toEqual(before)
        const ended = events.flatMap((event) =>
          event.kind === 'request_ended' && event.verdict ? [event.verdict] : [],
        )
        expect(ended.slice(0, before.length)).toEqual(before)
        // Where the provider takes no notice at all, the calls that the agent makes end its run.
        const isMute = events.some((event) => event.kind === 'failed_open' && event.reason === 'no_channel')
        if (blocked === -1 || (isMute && verdicts[blocked] === 'stop')) return
        const answered = provider.requests.filter((request) => LOOP_NOTICE.test(request.body.toString()))
        expect(answered.length).toBeGreaterThanOrEqual(2)
        const loopWarnings = events.flatMap((event) => (event.kind === 'loop' ? [event.noticeSent] : []))
        expect(loopWarnings.filter(Boolean).length).toBeGreaterThanOrEqual(2)
      }),
      { numRuns: 12 },
    )
  })
})

describe('two notices side by side', () => {
  it('do not switch a channel off if both requests fail in one moment', async () => {
    let failed = 0
    let bothFailed = () => {}
    const both = new Promise<void>((resolve) => {
      bothFailed = resolve
    })
    const { url, events } = await startBoth(
      async (request, number) => {
        if (!said(request) || failed === 2) return failing([])(request, number)
        if (++failed === 2) bothFailed()
        await both
        return { status: 500, body: { error: { message: 'busy' } } }
      },
      { budget: { ...BUDGET, caution_threshold: 0 }, loop_guard: { enabled: false } },
    )
    const calls = ['a', 'b'].map((id) => callModel(url, START, { headers: { 'x-session-id': id } }))
    const steps = await Promise.all(calls)
    expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(['allow', 'allow'])
    expect(events.filter(({ kind }) => kind === 'alteration_refused')).toEqual([])
    const next = await callModel(url, START, { headers: { 'x-session-id': 'c' } })
    expect(next.headers.get('x-governor-verdict')).toBe('warn')
  })
})

describe('a warning whose request fails', () => {
  it.each([429, 500, 503, 529])(
    'is none for the client that gets status %s, and is one when the repeated request gets through',
    async (status) => {
      let isDown = false
      const { url, events } = await startBoth(
        (request, number) => (isDown ? { status, body: { error: { message: 'down' } } } : failing([])(request, number)),
        { budget: { ...BUDGET, caution_threshold: 0, warning_threshold: 0.1, max_iterations: 20 } },
      )
      const first = await callModel(url, START)
      expect(first.status).toBe(200)
      const next = afterStep(START, first)
      isDown = true
      const failed = await callModel(url, next)
      expect(failed.status).toBe(status)
      expect(failed.headers.get('x-governor-verdict')).toBe('allow')
      isDown = false
      const repeated = await callModel(url, next)
      expect(repeated.headers.get('x-governor-verdict')).toBe('warn')
      expect(events.filter(({ kind }) => kind === 'warning_answered')).toEqual([])
      await callModel(url, afterStep(next, repeated))
      expect(events.filter(({ kind }) => kind === 'warning_answered')).toEqual([
        { kind: 'warning_answered', reaction: 'ignored' },
      ])
    },
  )
})
