import { describe, expect, it } from 'vitest'
import type { ProxyEvent } from '../../src/telemetry/event.ts'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'
import { WAYS } from '../support/ways.ts'

const LIMITS = [
  { limit: { max_tool_calls: 10 }, reason: 'max_tool_calls', state: 'tool_limit_reached' },
  { limit: { max_tokens: 1_100 }, reason: 'max_tokens', state: 'budget_exceeded' },
  { limit: { max_cost_usd: 1 }, reason: 'max_cost', state: 'budget_exceeded' },
  { limit: { max_seconds: 100 }, reason: 'max_seconds', state: 'budget_exceeded' },
]

const TABLE = WAYS.flatMap((way) =>
  LIMITS.flatMap((limit) =>
    ['run', 'session'].flatMap((scope) => [false, true].map((stream) => ({ ...way, ...limit, scope, stream }))),
  ),
)

describe.each(TABLE)('$way (stream: $stream), a $scope limit of $limit', (one) => {
  it('gives notices from the eighth request on and ends the run at the eleventh', async () => {
    let time = 1_760_000_000_000
    const script: Script = (request, number) => {
      time += 10_000
      return one.script(request, number)
    }
    const config = {
      models: [{ model: '*', price: { input: 1_000, output: 0 } }],
      loop_guard: { enabled: false },
      budget: { max_iterations: 0, adaptive: false, [one.scope]: one.limit },
    }
    const { url, provider } = await startBoth(script, config, { now: () => time })
    const steps = await one.run(url, one.stream)
    expect(steps.map(({ headers }) => headers.get('x-governor-tier'))).toEqual([
      ...Array(7).fill(null),
      'caution',
      'caution',
      'warning',
      null,
    ])
    expect(provider.requests.map(({ body }) => body.includes('[BUDGET: '))).toEqual([
      ...Array(7).fill(false),
      true,
      true,
      true,
      false,
    ])
    expect(steps.at(-1)?.governor).toMatchObject({
      terminal_state: one.state,
      terminal_reason: one.reason,
      has_final_answer: true,
    })
  })
})

describe.each(WAYS.flatMap((way) => [false, true].map((stream) => ({ ...way, stream }))))(
  'a warning over $way (stream: $stream)',
  (one) => {
    const config = {
      loop_guard: { enabled: false },
      budget: { max_iterations: 10, adaptive: false, caution_threshold: 0.5, warning_threshold: 0.5 },
    }
    const reactions = (events: readonly ProxyEvent[]) =>
      events.flatMap((event) => (event.kind === 'warning_answered' ? [event.reaction] : []))

    it('is acknowledged by an answer without calls', async () => {
      const script: Script = (request, number) =>
        number < 5 ? one.script(request, number) : { text: 'It is "tool_calls": [{ you need.' }
      const { url, events, until } = await startBoth(script, config)
      await one.run(url, one.stream)
      await until(({ kind }) => kind === 'warning_answered')
      expect(reactions(events)).toEqual(['acknowledged'])
    })

    it('is ignored by an answer that calls another tool, if the next request shows that answer', async () => {
      const { url, events } = await startBoth(one.script, config)
      await one.run(url, one.stream)
      const isShown = one.way !== 'responses, kept'
      expect(reactions(events)).toEqual(isShown ? Array(6).fill('ignored') : [])
    })
  },
)
