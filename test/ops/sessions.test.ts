import { describe, expect, it } from 'vitest'
import { apiError, sessionDetail, sessionPage } from '../../src/ops/sessions/api-schema.ts'
import { openApi } from '../../src/ops/sessions/openapi.ts'
import { act, ask, firstSession, listed, type Shown } from '../support/admin.ts'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type Answer, runaway, type Script } from '../support/provider.ts'
import { racing } from '../support/stores.ts'

const TOKEN = 'an-operators-token'
const token = { authorization: `Bearer ${TOKEN}` }
const budget = { max_iterations: 10 }
const named = (name: string, body = {}) => ({ headers: { 'x-governor-session': name }, body })

function clock() {
  const time = { now: 1_800_000_000_000 }
  return { time, now: () => time.now }
}

/** Answers after so many calls. */
const answering =
  (calls: number): Script =>
  ({ json }) =>
    json.messages.filter(({ role }) => role === 'tool').length < calls
      ? { calls: [{ name: 'search', arguments: { query: 'the secret of arguments' } }] }
      : { text: 'All done.' }

describe('a session in the API', () => {
  it('lists its iterations with tool names, verdicts, tiers and usage, but without arguments and results', async () => {
    const { url } = await startBoth(runaway(), { budget })
    await runAgent(url, START, { ...named('one'), max: 9 })
    const { id } = await firstSession(url)
    const { json, text } = await ask(url, `/governor/sessions/${id}`)
    const shown = json as Shown
    expect(shown.iterations).toHaveLength(9)
    expect(shown.iterations[0]).toMatchObject({
      thread: 1,
      iteration: 1,
      tools: ['search'],
      verdict: 'allow',
      tier: null,
      status: 200,
    })
    expect(shown.iterations[7]).toMatchObject({ iteration: 8, verdict: 'warn', tier: 'warning' })
    expect(shown.iterations[0]?.usage.input).toBeGreaterThan(0)
    expect(shown).toMatchObject({
      state: 'near_limit',
      iteration: 9,
      max_iterations: 10,
      risk: 0.9,
      risk_by: 'iterations',
    })
    expect(text).not.toMatch(/result of search|Find out|"q\d/)
  })

  it('has the same terminal state as the client got, and the final answer', async () => {
    const { url } = await startBoth(runaway('search', 'What I have found.'), {
      budget: { max_iterations: 3 },
      ops: { admin_token: TOKEN },
    })
    const { steps } = await runAgent(url, START, named('one'))
    const shown = await firstSession(url, token)
    expect(shown).toMatchObject({
      state: 'stopped',
      terminal_state: 'tool_limit_reached',
      terminal_reason: 'max_iterations',
      risk: 0,
    })
    expect(shown.terminal).toEqual(steps.at(-1)?.governor)
    expect(shown.final_answer).toEqual({ text: 'What I have found.', truncated: false })
    expect(shown.runs).toMatchObject([{ thread: 1, ended_at: null, iterations: 3, state: 'tool_limit_reached' }])
    expect(shown.meters).toContainEqual({ name: 'iterations', used: 3, max: 0 })
  })

  it('contains the first 64 KiB of a final answer, and says that there was more', async () => {
    const { url } = await startBoth(runaway('search', 'é'.repeat(40_000)), { budget: { max_iterations: 2 } })
    await runAgent(url, START, named('one'))
    const { final_answer: answer } = await firstSession(url)
    expect(answer?.truncated).toBe(true)
    expect(Buffer.byteLength(answer?.text ?? '')).toBe(65_536)
  })

  it('lists earlier runs, each with how it ended', async () => {
    const { url } = await startBoth(runaway('search', 'Enough.'), { budget: { max_iterations: 2 } })
    const { messages } = await runAgent(url, START, named('one'))
    await runAgent(url, [...messages, { role: 'user', content: 'And then?' }], { ...named('one'), max: 1 })
    const { runs } = await firstSession(url)
    expect(runs).toMatchObject([
      { thread: 1, iterations: 2, state: 'tool_limit_reached', terminal: { has_final_answer: true } },
      { thread: 1, iterations: 1, ended_at: null, state: 'working' },
    ])
  })

  it('is completed five minutes after a last answer without a tool call', async () => {
    const { time, now } = clock()
    const { url } = await startBoth(answering(1), { budget }, { now })
    await runAgent(url, START, named('one'))
    expect(await firstSession(url)).toMatchObject({ state: 'answered', terminal_state: null })
    time.now += 300_000
    expect(await firstSession(url)).toMatchObject({
      state: 'completed',
      terminal_state: 'completed',
      risk: 0,
    })
  })

  it('has a completed run as soon as a human speaks again', async () => {
    const { url } = await startBoth(answering(1), { budget })
    const { messages } = await runAgent(url, START, named('one'))
    await runAgent(url, [...messages, { role: 'user', content: 'Thanks. And?' }], { ...named('one'), max: 1 })
    expect((await firstSession(url)).runs[0]).toMatchObject({ state: 'completed', terminal: null })
  })

  it('is idle and not completed if the agent left after an answer with text and a tool call', async () => {
    const { time, now } = clock()
    const { url } = await startBoth(
      () => ({ text: 'I am nearly done.', calls: [{ name: 'search', arguments: {} }] }),
      { budget },
      { now },
    )
    await runAgent(url, START, { ...named('one'), max: 2 })
    time.now += 600_000
    expect(await firstSession(url)).toMatchObject({ state: 'idle', terminal_state: null })
  })

  it('ends in no_response if its last request got none, and in context_overflow if it was too large', async () => {
    const { time, now } = clock()
    const script: Script = ({ json }) =>
      json.model === 'small'
        ? {
            status: 400,
            body: {
              error: {
                message:
                  "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
                code: 'context_length_exceeded',
              },
            },
          }
        : { status: 500, body: { error: { message: 'down' } } }
    const { url } = await startBoth(script, { budget }, { now })
    await callModel(url, START, named('one'))
    await callModel(url, START, { ...named('two'), body: { model: 'small' } })
    time.now += 300_000
    const states = (await listed(url)).map(({ terminal_state }) => terminal_state)
    expect(states.sort()).toEqual(['context_overflow', 'no_response'])
    const [small] = await listed(url, '?model=small')
    const shown = (await ask(url, `/governor/sessions/${small?.id}`)).json as Shown
    expect(shown.iterations).toMatchObject([{ status: 400, overflow: 'shrink_context' }])
    expect(shown.contexts).toMatchObject([{ model: 'small', base: 4096, source: 'provider', effective: 4096 }])
  })

  it('says at once that the newest request failed, and says it no more after an answer', async () => {
    const { url } = await startBoth(
      (request, number) => (number === 2 ? { status: 529, body: {} } : runaway()(request, number)),
      { budget },
    )
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    await callModel(url, messages, named('one'))
    expect(await firstSession(url)).toMatchObject({ state: 'failed', last_error: 'error 529' })
    await callModel(url, messages, named('one'))
    expect(await firstSession(url)).toMatchObject({ state: 'working', last_error: null, error: null, client: 'node' })
  })

  it.each([
    [
      'a wrong key',
      { status: 401, body: { error: { code: 'invalid_api_key', message: 'No.' } } },
      401,
      'invalid_api_key',
    ],
    [
      'an overflow',
      {
        status: 400,
        body: { error: { message: 'maximum context length is 4096 tokens, however you requested 9000' } },
      },
      400,
      'context_overflow',
    ],
    ['an error without a code', { status: 404, body: 'gone' }, 404, null],
  ] as const)(
    'shows an agent that ended in %s as failed and not at work, with the reason',
    async (_, reply, status, code) => {
      const { time, now } = clock()
      const { url } = await startBoth(() => reply, {}, { now })
      await callModel(url, START, named('one')).catch(() => undefined)
      for (const wait of [0, 400_000]) {
        time.now += wait
        expect(await firstSession(url)).toMatchObject({ state: 'failed', error: { status, code } })
        const { summary } = (await ask(url, '/governor/sessions')).json as { summary: { at_work: number } }
        expect(summary.at_work).toBe(0)
      }
    },
  )

  it('shows an agent whose upstream refuses connections as failed', async () => {
    const { url } = await startGovernor('http://127.0.0.1:1')
    await callModel(url, START, named('one'))
    const error = { status: 502, code: 'upstream_unreachable' }
    expect(await firstSession(url)).toMatchObject({ state: 'failed', error, last_error: 'no answer' })
  })

  it('shows what Governor said to the model, and what it used minute by minute', async () => {
    const { time, now } = clock()
    const { url } = await startBoth(
      runaway('search', 'Enough.'),
      { budget: { max_iterations: 4, adaptive: false } },
      { now },
    )
    const { messages } = await runAgent(url, START, { ...named('one'), max: 3 })
    time.now += 60_000
    const { messages: more } = await runAgent(url, messages, { ...named('one'), max: 1 })
    await callModel(url, more, named('one'))
    const { iterations, minutes } = await firstSession(url)
    expect(iterations[0]?.said).toBeNull()
    expect(iterations[2]?.said).toMatch(/^\[BUDGET: Iteration 3\/4/)
    expect(iterations.at(-1)?.said).toMatch(/^You've reached the maximum number/)
    expect(minutes).toHaveLength(2)
    expect(minutes[0]).toMatchObject({ tokens: 330, cost_usd: null, price_known: false })
  })

  it('states the true cost by the minute of a session that makes more iterations than are kept', async () => {
    const { time, now } = clock()
    const models = [{ model: '*', price: { input: 1_000, output: 0 } }]
    const script: Script = (request, number) => {
      time.now += 1_000
      return runaway()(request, number)
    }
    const { url } = await startBoth(script, { models }, { now })
    await runAgent(url, START, { ...named('one'), max: 96 })
    const { cost_usd_per_minute: rate } = await firstSession(url)
    expect(rate).toBeGreaterThan(5.9)
    expect(rate).toBeLessThan(6.2)
  })

  it('distinguishes agents, and names the parent of each', async () => {
    const { url } = await startBoth(runaway(), { budget })
    await runAgent(url, START, { ...named('one'), max: 2 })
    const headers = { 'x-governor-session': 'one', 'x-claude-code-agent-id': 'explorer' }
    await runAgent(url, [{ role: 'user', content: 'Explore.' }], { headers, max: 3 })
    const shown = await firstSession(url)
    expect(shown.threads).toMatchObject([
      { thread: 1, parent: null, iteration: 2 },
      { thread: 2, parent: 1, iteration: 3 },
    ])
    expect(shown).toMatchObject({ agents: { alive: 2, total: 2 }, total_iterations: 5 })
  })

  it('counts the first iteration of a conversation that had no id yet', async () => {
    const { url } = await startBoth(runaway(), { budget })
    await runAgent(url, START, { max: 3 })
    const { iterations } = await firstSession(url)
    expect(iterations.map(({ iteration, tools }) => [iteration, tools])).toEqual([
      [1, ['search']],
      [2, ['search']],
      [3, []],
    ])
  })

  it('describes a loop with its tool, its count and its start', async () => {
    const { url } = await startBoth(() => ({ calls: [{ name: 'read_file', arguments: { path: 'a' } }] }), {
      budget: { max_iterations: 100 },
    })
    await runAgent(url, START, { ...named('one'), max: 6 })
    const shown = await firstSession(url)
    expect(shown).toMatchObject({
      state: 'going_round',
      last_tool: 'read_file',
      loop: { pattern: 'repetition', tools: ['read_file'], count: 5, since: 1 },
      risk_by: 'loop',
    })
  })

  it('is the same if every change of the store loses a race first', async () => {
    const { url } = await startBoth(
      runaway('search', 'Enough.'),
      { budget: { max_iterations: 3 } },
      { store: racing() },
    )
    await runAgent(url, START, named('one'))
    const { id } = await firstSession(url)
    await act(url, id, 'extend', { by: 2 })
    const shown = await firstSession(url)
    expect(shown.iterations.map(({ iteration }) => iteration)).toEqual([1, 2, 3, 3])
    expect(shown.max_iterations).toBe(5)
  })
})

describe('the identity of a session', () => {
  it.each(['the name of its client', 'the session of its header', 'its id'])(
    'is accepted by every path and filter as %s',
    async (kind) => {
      const { url, logs } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
      const options = kind === 'the name of its client' ? named('night/ly run') : {}
      const { steps } = await runAgent(url, START, options)
      const said = steps.at(-1)?.headers.get('x-governor-session') ?? ''
      const { id } = await firstSession(url)
      const given = kind === 'its id' ? id : kind === 'the name of its client' ? 'night/ly run' : said
      if (kind !== 'its id') expect(logs.join()).toContain(`"session":${JSON.stringify(given)}`)
      expect(logs.join()).toContain(`"page":"${url}/governor/#${id}"`)
      const path = encodeURIComponent(given)
      expect((await ask(url, `/governor/sessions/${path}`)).json).toMatchObject({ id })
      expect((await listed(url, `?id=${encodeURIComponent(given.slice(0, 8))}`)).map((one) => one.id)).toEqual([id])
      expect((await act(url, path, 'extend', { by: 2 })).json).toMatchObject({ id, max_iterations: 5 })
      expect((await act(url, path, 'loop-guard', { mode: 'observe' })).status).toBe(200)
    },
  )

  it('is not accepted where two clients call a session by the same name', async () => {
    const { url } = await startBoth(runaway())
    for (const key of ['sk-one', 'sk-two'])
      await runAgent(url, START, {
        headers: { 'x-governor-session': 'mine', authorization: `Bearer ${key}` },
        max: 1,
      })
    expect((await act(url, 'mine', 'stop')).status).toBe(409)
  })
})

describe('a list of sessions in the API', () => {
  const names = Array.from({ length: 25 }, (_, at) => `session ${at}`)

  it('is sorted by risk, and its pages contain each session once', async () => {
    const { url } = await startBoth(runaway(), { budget, ops: { admin_token: TOKEN } })
    for (const [at, name] of names.entries()) await runAgent(url, START, { ...named(name), max: 1 + (at % 5) })
    const seen: { name: string | null; risk: number }[] = []
    let next: string | null = ''
    do {
      const cursor: string = next ? `&cursor=${next}` : ''
      const { json } = await ask(url, `/governor/sessions?limit=10${cursor}`, { headers: token })
      const page = json as { sessions: typeof seen; next: string | null }
      seen.push(...page.sessions)
      next = page.next
    } while (next)
    expect(seen.map(({ name }) => name).sort()).toEqual([...names].sort())
    const risks = seen.map(({ risk }) => risk)
    expect(risks).toEqual([...risks].sort((a, b) => b - a))
    expect(risks[0]).toBe(0.5)
  })

  it.each([
    // With what needs a person first and what has ended last; else over all groups.
    ['risk', ['looping', 'dear', 'cheap', 'ended']],
    ['cost', ['looping', 'ended', 'dear', 'cheap']],
    ['rate', ['looping', 'dear', 'cheap', 'ended']],
    ['iterations', ['looping', 'ended', 'dear', 'cheap']],
    ['newest', ['looping', 'cheap', 'dear', 'ended']],
    ['cost&direction=asc', ['cheap', 'dear', 'ended', 'looping']],
    ['name', ['cheap', 'dear', 'ended', 'looping']],
    ['name&direction=desc', ['looping', 'ended', 'dear', 'cheap']],
  ])('is sorted by %s', async (sort, order) => {
    const { time, now } = clock()
    const script: Script = (request, number) =>
      request.header('x-name') === 'looping' ? { calls: [{ name: 'read', arguments: {} }] } : runaway()(request, number)
    const models = [{ model: '*', price: { input: 1_000, output: 0 } }]
    const { url } = await startBoth(
      script,
      { models, overrides: [{ model: 'few', budget: { max_iterations: 4 } }] },
      { now },
    )
    const run = (name: string, max: number, body = {}) => {
      time.now += 1_000
      const headers = { ...named(name).headers, 'x-name': name }
      return runAgent(url, START, { headers, max, body })
    }
    await run('ended', 9, { model: 'few' })
    await run('dear', 3)
    await run('cheap', 1)
    await run('looping', 6)
    const shown = await listed(url, `?sort=${sort}`)
    expect(shown.map(({ name }) => name)).toEqual(order)
    expect(shown.find(({ name }) => name === 'ended')?.cost_usd_per_minute).toBeNull()
  })

  it('is searched by words of name, client and model, and says how many there are', async () => {
    const { url } = await startBoth(runaway())
    for (const name of ['nightly build', 'nightly docs', 'crawl'])
      await runAgent(url, START, {
        headers: {
          'x-governor-session': name,
          'user-agent': name === 'crawl' ? 'codex/1.0' : 'claude-cli/2',
        },
        max: 1,
        body: { model: 'opus' },
      })
    const found = async (q: string) =>
      (await ask(url, `/governor/sessions?limit=1&q=${encodeURIComponent(q)}`)).json as {
        total: number
        sessions: readonly { name: string }[]
      }
    expect(await found('nightly')).toMatchObject({ total: 2 })
    expect(await found('OPUS docs')).toMatchObject({ total: 1, sessions: [{ name: 'nightly docs' }] })
    expect(await found('codex')).toMatchObject({ total: 1, sessions: [{ name: 'crawl', client: 'codex' }] })
    expect(await found('nothing')).toMatchObject({ total: 0, sessions: [] })
  })

  it('states how many are at work and need a person, and what all cost by the minute and today', async () => {
    const models = [{ model: 'priced', price: { input: 1_000, output: 0 } }]
    const noon = new Date().setHours(12, 0, 0, 0)
    const { url } = await startBoth(runaway(), { models }, { now: () => noon })
    const summary = async () => ((await ask(url, '/governor/sessions?limit=1')).json as { summary: object }).summary
    const nothing = { cost_usd: 0, price_known: true, cost_estimated: false }
    expect(await summary()).toMatchObject({ sessions: 0, at_work: 0, need_you: 0, today: nothing })
    await runAgent(url, START, { ...named('one'), max: 2, body: { model: 'priced' } })
    const spent = { cost_usd: 0.2, price_known: true }
    expect(await summary()).toMatchObject({ sessions: 1, at_work: 1, per_minute: spent, today: spent })
    await runAgent(url, START, { ...named('two'), max: 1 })
    const partly = { cost_usd: 0.2, price_known: false }
    await expect.poll(summary).toMatchObject({ sessions: 2, at_work: 2, per_minute: partly, today: partly })
  })

  it('continues after the last session when its snapshot has expired', async () => {
    const { time, now } = clock()
    const { url } = await startBoth(runaway(), { budget }, { now })
    for (const name of names.slice(0, 6)) {
      time.now += 1_000
      await runAgent(url, START, { ...named(name), max: 1 })
    }
    const first = (await ask(url, '/governor/sessions?limit=4')).json as {
      sessions: { id: string }[]
      next: string
    }
    time.now += 60_000
    const rest = (await ask(url, `/governor/sessions?limit=4&cursor=${first.next}`)).json as typeof first
    expect(new Set([...first.sessions, ...rest.sessions].map(({ id }) => id)).size).toBe(6)
    expect(rest.next).toBeNull()
  })

  it('contains a session that began just after the previous list', async () => {
    const { url } = await startBoth(runaway())
    expect(await listed(url)).toEqual([])
    await runAgent(url, START, { ...named('one'), max: 1 })
    expect(await listed(url)).toHaveLength(1)
  })

  it('can be filtered by state, model, upstream and the start of ids', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 2 } })
    await runAgent(url, START, { ...named('over'), body: { model: 'big-one' } })
    await runAgent(url, START, { ...named('on'), max: 1, body: { model: 'small-one' } })
    const [over] = await listed(url, '?state=stopped')
    expect((await listed(url, '?model=big-*')).map(({ id }) => id)).toEqual([over?.id])
    expect(await listed(url, '?upstream=anthropic')).toEqual([])
    expect(await listed(url, '?upstream=openai')).toHaveLength(2)
    expect((await listed(url, `?id=${over?.id.slice(0, 9)}`)).map(({ id }) => id)).toEqual([over?.id])
  })

  it("finds sessions by the client's own name, newest first", async () => {
    const { time, now } = clock()
    const { url } = await startBoth(runaway(), { budget }, { now })
    for (const key of ['sk-one', 'sk-two']) {
      time.now += 1_000
      const headers = { 'x-governor-session': 'mine', authorization: `Bearer ${key}` }
      await runAgent(url, START, { headers, max: 1 })
    }
    await runAgent(url, START, { ...named('other'), max: 1 })
    const found = await listed(url, '?name=mine')
    expect(found).toMatchObject([{ name: 'mine' }, { name: 'mine' }])
    expect(Date.parse(found[0]?.last_at ?? '')).toBeGreaterThan(Date.parse(found[1]?.last_at ?? ''))
    expect(found.map(({ id }) => id).join()).not.toContain('mine')
  })

  it.each(['limit=0', 'limit=x', 'state=mad', 'cursor=nothing', 'colour=red'])(
    'rejects ?%s with a reason',
    async (query) => {
      const { url } = await startBoth(runaway())
      const reply = await ask(url, `/governor/sessions?${query}`)
      expect(reply.status).toBe(400)
      expect(apiError.parse(reply.json).error.message).toMatch(/^query: /)
    },
  )

  it('can be read without marking its sessions as used', async () => {
    const { url } = await startBoth(runaway(), { sessions: { max: 3 } })
    for (const name of ['a', 'b', 'c']) await runAgent(url, START, { ...named(name), max: 1 })
    await listed(url)
    await runAgent(url, START, { ...named('d'), max: 1 })
    expect(await listed(url, '?name=a')).toEqual([])
  })
})

describe('an operator', () => {
  it('can stop a run: its next request gets a last answer, and the run stays stopped', async () => {
    const { url, provider, logs } = await startBoth(runaway('search', 'What I have.'), { budget })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    const { id } = await firstSession(url)
    expect((await act(url, id, 'stop')).json).toMatchObject({ stopping: true, state: 'working' })
    const step = await callModel(url, messages, named('one'))
    expect(step.status).toBe(200)
    expect(step.message.content).toBe('What I have.')
    expect(step.governor).toMatchObject({
      terminal_state: 'stopped',
      terminal_reason: 'operator',
      has_final_answer: true,
      budget_used: 2,
      budget_max: 10,
    })
    expect(step.headers.get('x-governor-terminal-state')).toBe('stopped')
    const asked = provider.requests.length
    const again = await callModel(url, afterStep(messages, step).slice(0, -1), named('one'))
    expect(again.governor).toEqual(step.governor)
    expect(provider.requests).toHaveLength(asked)
    expect(await firstSession(url)).toMatchObject({
      state: 'stopped',
      terminal_reason: 'operator',
      stopping: false,
      final_answer: { text: 'What I have.' },
    })
    expect(
      logs.some((line) => line.includes('"operator acted"') && line.includes('"action":"stop"') && line.includes(id)),
    ).toBe(true)
    const human = [...messages, step.message, { role: 'user', content: 'Go on.' }]
    expect((await callModel(url, human, named('one'))).headers.get('x-governor-iteration')).toBe('1/10')
  })

  it('is not stopping any more once its answered run is over', async () => {
    const { time, now } = clock()
    const { url } = await startBoth(answering(0), {}, { now })
    await runAgent(url, START, named('one'))
    expect((await act(url, 'one', 'stop')).json).toMatchObject({ state: 'answered', stopping: true })
    time.now += 300_000
    expect(await firstSession(url)).toMatchObject({ state: 'completed', stopping: false })
    expect((await act(url, 'one', 'stop')).json).toMatchObject({ state: 'completed', stopping: false })
  })

  it('stops a run with the texts of the configuration', async () => {
    const { url, provider } = await startBoth(
      ({ json }) => (json.tools && json.tool_choice !== 'none' ? { calls: [{ name: 'search', arguments: {} }] } : {}),
      {
        budget,
        stop: {
          operator_text: 'Stop after {used} of {max}, please.',
          operator_fallback_text: '(stopped at {used})',
        },
      },
    )
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    await act(url, (await firstSession(url)).id, 'stop')
    const step = await callModel(url, messages, named('one'))
    expect(JSON.stringify(provider.requests.at(2)?.json)).toContain('Stop after 2 of 10, please.')
    expect(step.message.content).toBe('(stopped at 2)')
    expect(step.governor).toMatchObject({ terminal_reason: 'operator', has_final_answer: false })
  })

  it('can stop a run although the budget is disabled', async () => {
    const { url } = await startBoth(runaway(), { budget: { enabled: false } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    await act(url, (await firstSession(url)).id, 'stop')
    expect((await callModel(url, messages, named('one'))).governor).toMatchObject({
      terminal_reason: 'operator',
    })
  })

  it('can extend a run, rounded up, and takes precedence over the client', async () => {
    const { url, logs } = await startBoth(runaway(), { budget: { max_iterations: 100 } })
    const headers = { 'x-governor-session': 'one', 'x-governor-max-iterations': '10' }
    const { messages } = await runAgent(url, START, { headers, max: 9 })
    const { id } = await firstSession(url)
    expect((await act(url, id, 'extend', { by: '50%' })).json).toMatchObject({ max_iterations: 15 })
    const logged = logs.map((line) => JSON.parse(line) as object)
    expect(logged).toContainEqual(expect.objectContaining({ action: 'extend', by: 'loopback', extended_by: '50%' }))
    const step = await callModel(url, messages, { headers })
    expect(step.headers.get('x-governor-iteration')).toBe('10/15')
    expect(step.headers.get('x-governor-tier')).toBeNull()
  })

  it('can extend a run that a limit has stopped, so that it continues', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
    const { messages } = await runAgent(url, START, named('one'))
    const { id } = await firstSession(url)
    await act(url, id, 'extend', { by: 2 })
    const before = messages.slice(0, -1)
    const step = await callModel(
      url,
      [...before, { role: 'assistant', content: 'Hm.' }, { role: 'tool', tool_call_id: 'x', content: 'y' }],
      named('one'),
    )
    expect(step.headers.get('x-governor-verdict')).not.toBe('stop')
    expect(await firstSession(url)).toMatchObject({ max_iterations: 5, terminal_state: null })
  })

  it('extends a run once per Idempotency-Key, and up to a given number at any repetition', async () => {
    const { url } = await startBoth(runaway(), { budget })
    await runAgent(url, START, { ...named('one'), max: 2 })
    const { id } = await firstSession(url)
    const once = { 'idempotency-key': 'click 1' }
    await act(url, id, 'extend', { by: '50%' }, once)
    await act(url, id, 'extend', { by: '50%' }, once)
    const limit = async () => {
      const headers = named('one').headers
      const step = await callModel(url, START, { headers })
      return step.headers.get('x-governor-iteration')?.split('/')[1]
    }
    expect(await limit()).toBe('15')
    await act(url, id, 'extend', { to: 40 })
    await act(url, id, 'extend', { to: 40 })
    await act(url, id, 'extend', { to: 20 })
    expect(await limit()).toBe('40')
  })

  it('does not change the announcement of the budget at the beginning of the run', async () => {
    const { url, provider } = await startBoth(runaway(), {
      budget: { max_iterations: 10, announce: 'always' },
    })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    await act(url, (await firstSession(url)).id, 'extend', { to: 90 })
    await callModel(url, messages, named('one'))
    const [first, last] = [provider.requests[0], provider.requests.at(-1)].map((one) => one?.json.messages[0])
    expect(JSON.stringify(first)).toContain('10 iterations total')
    expect(last).toEqual(first)
  })

  it('can set limits for this run and later ones, and remove them again', async () => {
    const { url } = await startBoth(runaway(), { budget })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    const { id } = await firstSession(url)
    await act(url, id, 'budget', { max_iterations: 90, max_tool_calls: 50 })
    const step = await callModel(url, messages, named('one'))
    expect(step.headers.get('x-governor-iteration')).toBe('3/90')
    const human = [...messages, step.message, { role: 'user', content: 'Next.' }]
    expect((await callModel(url, human, named('one'))).headers.get('x-governor-iteration')).toBe('1/90')
    await act(url, id, 'budget', { max_iterations: null })
    const next = [...human, { role: 'user', content: 'And next.' }]
    expect((await callModel(url, next, named('one'))).headers.get('x-governor-iteration')).toBe('1/10')
  })

  it.each([
    ['an extension raises a limit that was set just before', [['budget', 90]], ['extend', '10%'], 99],
    ['an extension sets none where an operator has just taken it away', [['budget', 0]], ['extend', '10%'], 0],
    ['a limit that is given back is the configured one', [['budget', 90], 'step'], ['budget', null], 10],
    ['a reset ends an extension', [['extend', 20], 'step'], ['reset', undefined], 10],
  ] as const)('says what holds from the next request on: %s', async (_, before, last, expected) => {
    const { url } = await startBoth(runaway(), { budget })
    let { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    const { id } = await firstSession(url)
    const press = ([action, by]: readonly ['budget' | 'extend' | 'reset', number | string | null | undefined]) =>
      act(url, id, action, { budget: { max_iterations: by }, extend: { by }, reset: {} }[action])
    for (const one of before)
      if (one === 'step') messages = afterStep(messages, await callModel(url, messages, named('one')))
      else await press(one)
    const { max_iterations } = (await press(last)).json as Shown
    const { headers } = await callModel(url, messages, named('one'))
    const next = Number(headers.get('x-governor-iteration')?.split('/')[1] ?? 0)
    expect([max_iterations, next]).toEqual([expected, expected])
  })

  it('can set the limit of one agent only', async () => {
    const { url } = await startBoth(runaway(), { budget })
    await runAgent(url, START, { ...named('one'), max: 1 })
    const headers = { 'x-governor-session': 'one', 'thread-id': 'other' }
    const { messages } = await runAgent(url, START, { headers, max: 1 })
    await act(url, (await firstSession(url)).id, 'budget', { max_iterations: 4, thread: 2 })
    expect((await callModel(url, messages, { headers })).headers.get('x-governor-iteration')).toBe('2/4')
    expect((await callModel(url, START, named('one'))).headers.get('x-governor-iteration')).toBe('1/10')
  })

  it('can silence the loop guard', async () => {
    const script: Script = () => ({ calls: [{ name: 'read_file', arguments: { path: 'a' } }] })
    const { url, provider } = await startBoth(script, { budget: { max_iterations: 100 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    await act(url, (await firstSession(url)).id, 'loop-guard', { mode: 'observe' })
    await runAgent(url, messages, { ...named('one'), max: 15 })
    expect(provider.requests.some(({ body }) => body.includes('repeating'))).toBe(false)
    expect(await firstSession(url)).toMatchObject({
      state: 'going_round',
      threads: [{ loop_guard_mode: 'observe' }],
    })
  })

  it('gets 409 for a mode of a loop guard that the configuration disables', async () => {
    const { url } = await startBoth(runaway(), { loop_guard: { enabled: false } })
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { id } = await firstSession(url)
    const reply = await act(url, id, 'loop-guard', { mode: 'enforce' })
    expect(reply.status).toBe(409)
    expect(apiError.parse(reply.json).error).toMatchObject({
      code: 'loop_guard_off',
      message: expect.stringContaining('loop_guard.enabled'),
    })
    expect(await firstSession(url)).toMatchObject({ threads: [{ loop_guard_mode: null }] })
    expect((await act(url, id, 'loop-guard', { mode: null })).status).toBe(200)
  })

  it('can set the mode of a loop guard that is enabled only for some requests', async () => {
    const { url } = await startBoth(runaway(), {
      loop_guard: { enabled: false },
      overrides: [{ model: 'big-*', loop_guard: { enabled: true } }],
    })
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { id } = await firstSession(url)
    expect((await act(url, id, 'loop-guard', { mode: 'warn' })).status).toBe(200)
  })

  it('can reset a stopped run, which then counts from one', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
    const { messages } = await runAgent(url, START, named('one'))
    await act(url, (await firstSession(url)).id, 'reset')
    const more = [
      ...messages,
      { role: 'assistant', content: 'Again.' },
      { role: 'tool', tool_call_id: 'x', content: 'y' },
    ]
    const step = await callModel(url, more, named('one'))
    expect(step.headers.get('x-governor-iteration')).toMatch(/^[12]\/3$/)
    expect(step.headers.get('x-governor-verdict')).not.toBe('stop')
  })

  it.each([
    ['reset', undefined, ['1/4', '2/4', '3/4', '4/4', '4/4'], 4],
    ['extend', { by: 3 }, ['5/7', '6/7', '7/7', '7/7'], 7],
  ] as const)(
    'can let a stopped run go on, whichever of its requests after the end comes first: %s',
    async (action, body, counted, total) => {
      for (const first of [{}, { temperature: 0 }, { temperature: 0.1 }]) {
        const { url } = await startBoth(runaway(), { budget: { max_iterations: 4 } })
        let { messages } = await runAgent(url, START, { ...named('one'), max: 4 })
        for (const temperature of [0, 0.1]) await callModel(url, messages, named('one', { temperature }))
        await act(url, (await firstSession(url)).id, action, body)
        const seen: unknown[] = []
        for (let more = first; seen.length < counted.length; more = {}) {
          const step = await callModel(url, messages, named('one', more))
          seen.push(step.headers.get('x-governor-iteration'))
          messages = afterStep(messages, step)
        }
        expect([seen, (await firstSession(url)).total_iterations]).toEqual([counted, total])
      }
    },
  )

  it('can reset a run whose newest request fails after that: sent again, it is the first iteration', async () => {
    let fail = (_: Answer) => {}
    const failing = new Promise<Answer>((resolve) => {
      fail = resolve
    })
    const model = runaway()
    const script: Script = (request, number) => (number === 3 ? failing : model(request, number))
    const { url, provider } = await startBoth(script, { budget: { max_iterations: 90 } })
    let { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    const third = callModel(url, messages, named('one'))
    await expect.poll(() => provider.requests.length).toBe(3)
    await act(url, (await firstSession(url)).id, 'reset')
    fail({ status: 500, body: {} })
    await third
    const seen: unknown[] = []
    for (let at = 0; at < 2; at++) {
      const step = await callModel(url, messages, named('one'))
      seen.push(step.headers.get('x-governor-iteration'))
      messages = afterStep(messages, step)
    }
    expect([seen, (await firstSession(url)).total_iterations]).toEqual([['1/90', '2/90'], 2])
  })

  it('that lowers the limit of a stopped run has the model give no other last answer', async () => {
    const { url, provider } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 3 })
    await callModel(url, messages, named('one'))
    await act(url, (await firstSession(url)).id, 'budget', { max_iterations: 2 })
    const again = await callModel(url, messages, named('one'))
    expect([again.governor?.['budget_max'], provider.requests.length]).toEqual([3, 4])
  })

  it.each([
    ['extend', {}],
    ['extend', { by: '-5%' }],
    ['extend', { by: 'much' }],
    ['extend', { by: 0 }],
    ['extend', { by: '0%' }],
    ['extend', { by: '00.00%' }],
    ['budget', { max_iterations: -1 }],
    ['budget', { max_iterations: 1.5 }],
    ['budget', { colour: 1 }],
    ['loop-guard', { mode: 'mad' }],
    ['stop', { thread: 'all' }],
  ])('gets a reason for a wrong request: %s %j', async (action, body) => {
    const { url } = await startBoth(runaway(), { budget })
    await runAgent(url, START, { ...named('one'), max: 1 })
    const reply = await act(url, (await firstSession(url)).id, action, body)
    expect(reply.status).toBe(400)
    expect(apiError.parse(reply.json).error.message).toMatch(/^body: /)
  })

  it('gets 404 for an unknown session or agent, and creates none', async () => {
    const { url } = await startBoth(runaway(), { budget })
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { id } = await firstSession(url)
    for (const unknown of [
      'x',
      '__proto__',
      `${id.slice(0, -1)}z`,
      `s${'a'.repeat(43)}.0123456789abcdef`,
      encodeURIComponent('../x'),
    ])
      for (const action of ['stop', 'reset']) expect((await act(url, unknown, action)).status, unknown).toBe(404)
    expect((await ask(url, '/governor/sessions/nothing')).status).toBe(404)
    expect((await act(url, id, 'stop', { thread: 7 })).status).toBe(404)
    expect(await listed(url)).toHaveLength(1)
  })
})

describe('the OpenAPI description of the API', () => {
  it('is valid OpenAPI 3.1, and all of its references exist', async () => {
    const { url } = await startBoth(runaway())
    const { json, text } = await ask(url, '/governor/openapi.json')
    const { schemas } = (json as { components: { schemas: object } }).components
    expect(json).toMatchObject({ openapi: '3.1.0', info: { title: 'Governor' } })
    const named = [...text.matchAll(/"\$ref":"#\/components\/schemas\/(\w+)"/g)].map(([, name]) => name)
    for (const name of named) expect(Object.keys(schemas)).toContain(name)
    // Not one that refers to itself.
    for (const schema of Object.values(schemas)) expect(schema).toMatchObject({ type: 'object', properties: {} })
    expect(json).toEqual(JSON.parse(JSON.stringify(openApi((json as { info: { version: string } }).info.version))))
  })

  it('describes every key of real replies', async () => {
    const { url } = await startBoth(runaway('search', 'Enough.'), { budget: { max_iterations: 3 } })
    await runAgent(url, START, named('one'))
    await runAgent(url, START, { max: 2 })
    const list = await ask(url, '/governor/sessions')
    const page = sessionPage.parse(list.json)
    for (const { id } of page.sessions) {
      sessionDetail.parse((await ask(url, `/governor/sessions/${id}`)).json)
      sessionDetail.parse((await act(url, id, 'stop')).json)
    }
    apiError.parse((await ask(url, '/governor/nothing')).json)
  })

  it('contains every route', async () => {
    const { url } = await startBoth(runaway(), { sessions: { transcript: true } })
    const { paths } = (await ask(url, '/governor/openapi.json')).json as { paths: Record<string, object> }
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { id } = await firstSession(url)
    for (const [path, methods] of Object.entries(paths)) {
      for (const method of Object.keys(methods)) {
        if (path === '/governor/events') continue
        const reply = await ask(url, path.replace('{id}', id), { method: method.toUpperCase() })
        // Here no journal is kept.
        const expected = path === '/governor/usage' ? [404] : [200, 400]
        expect(expected, `${method} ${path}`).toContain(reply.status)
      }
    }
  })
})
