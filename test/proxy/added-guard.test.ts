/** What a guard needs besides its rows in `GUARDS` and `GUARD_REASONS`: nothing. This one limits agents per session. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type CallGuard, GUARDS } from '../../src/core/guards.ts'
import { NOTICES } from '../../src/core/loop/loop-notices.ts'
import { mergeSessions } from '../../src/core/session/merge.ts'
import { NEW_SESSION } from '../../src/core/session/session.ts'
import { type CallGuardName, GUARD_REASONS, REASONS } from '../../src/core/terminal.ts'
import { callModel, runAgent, START, TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { Answer, Received } from '../support/provider.ts'
import { mayCall } from '../support/scripts.ts'

const NAME = 'max_spawns' as CallGuardName
const MAX = 2
const TEXT = `[GOVERNOR] This session already runs ${MAX} of ${MAX} agents. Do this part yourself.`
const ASK = 'No more agents can be started: give your answer.'

const TABLES = [REASONS, GUARD_REASONS] as Record<string, object>[]
const ROW = { state: 'tool_limit_reached', footer: 'no more agents', notices: [] }

const guard: CallGuard = {
  name: NAME,
  onRefusedAgain: 'pass',
  mayBlock: () => true,
  endOf: () => undefined,
  judge(calls, { guards }) {
    let spawned = guards?.[NAME]?.['spawned'] ?? 0
    const blocked = calls.map(({ name: tool }) => {
      if (tool !== 'spawn' || spawned++ < MAX) return undefined
      return { guard: NAME, tool, text: TEXT, askText: ASK, fallback: '(Stopped: no more agents)' }
    })
    return { blocked, memory: { spawned: Math.min(spawned, MAX) } }
  },
}

// Test files share their modules.
beforeAll(() => {
  for (const table of TABLES) table[NAME] = ROW
  ;(GUARDS as CallGuard[]).push(guard)
})
afterAll(() => {
  for (const table of TABLES) delete table[NAME]
  ;(GUARDS as CallGuard[]).pop()
})

const SESSION = { headers: { 'x-governor-session': 'one' } }
const tool = (name: string) => ({ type: 'function', function: { name, parameters: {} } })
const BODY = { tools: [...TOOLS, tool('spawn'), tool('read')] }
const spawn = (nth: number) => ({ name: 'spawn', arguments: { nth } })
const READ = { name: 'read', arguments: { file: 'a' } }

const offers = ({ json }: Received, name: string) => JSON.stringify(json.tools ?? []).includes(`"${name}"`)
const namesOf = (steps: Awaited<ReturnType<typeof runAgent>>['steps']) =>
  steps.map(({ message }) => message.tool_calls?.map((call) => call.function.name) ?? [])

describe.each([{ stream: false }, { stream: true }])('a guard with a limit per session (stream: $stream)', (way) => {
  it('blocks a call beyond it; other calls of the response pass, and the next request tells the model, once', async () => {
    const { url, provider } = await startBoth(
      (_, number): Answer => (number < 4 ? { calls: [spawn(number), READ] } : number < 6 ? { calls: [READ] } : {}),
      { loop_guard: { enabled: false } },
    )
    const { steps } = await runAgent(url, START, { ...SESSION, ...way, body: BODY, max: 5 })
    expect(namesOf(steps)).toEqual([['spawn', 'read'], ['spawn', 'read'], ['read'], ['read'], ['read']])
    const told = provider.requests.map(({ body }) => body.includes('[GOVERNOR]'))
    expect(told).toEqual([false, false, false, true, false])
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_loops_total{pattern="max_spawns",tool="spawn",action="blocked"} 1')
  })

  it('counts in all threads of the session, and in no other session', async () => {
    const { url } = await startBoth((_, number): Answer => ({ calls: [spawn(number), READ] }))
    const asked = async (session: string, thread: string) => {
      const headers = { 'x-governor-session': session, 'thread-id': thread }
      return namesOf([await callModel(url, START, { headers, ...way, body: BODY })]).flat()
    }
    expect(await asked('one', 'a')).toContain('spawn')
    expect(await asked('one', 'b')).toContain('spawn')
    expect(await asked('one', 'c')).toEqual(['read'])
    expect(await asked('two', 'a')).toContain('spawn')
  })

  it('has the model asked twice, then once without the tool, and the run goes on', async () => {
    const { url, provider } = await startBoth((request, number): Answer => {
      if (number === 7) return { text: 'Done.' }
      return { calls: [offers(request, 'spawn') ? spawn(number) : READ] }
    })
    const { steps } = await runAgent(url, START, { ...SESSION, ...way, body: BODY })
    expect(namesOf(steps)).toEqual([['spawn'], ['spawn'], ['read'], []])
    expect(provider.requests.map((request) => offers(request, 'spawn'))).toEqual([
      ...[true, true, true, true, true, false, true],
    ])
    expect(String(provider.requests[5]?.body).split(TEXT).length).toBe(4)
    expect(steps.every(({ governor }) => governor === undefined)).toBe(true)
  })

  it('ends the run with its own reason where the model calls nothing else; no blocked call reaches the client', async () => {
    const { url, provider } = await startBoth(
      (request, number): Answer => (mayCall(request) ? { calls: [spawn(number)] } : { text: 'All I know.' }),
      { stop: { footer: true } },
    )
    const { steps, messages } = await runAgent(url, START, { ...SESSION, ...way, body: BODY })
    expect(namesOf(steps)).toEqual([['spawn'], ['spawn'], []])
    const last = steps.at(-1)
    expect(last?.governor).toMatchObject({ terminal_state: 'tool_limit_reached', terminal_reason: 'max_spawns' })
    expect(last?.message.content).toBe('All I know.\n\n— stopped by governor: no more agents')
    expect(String(provider.requests.at(-1)?.body)).toContain(ASK)
    expect(last?.headers.get('x-governor-verdict')).toBe('stop')
    expect(last?.headers.get('x-governor-loop')).toBeNull()
    const asked = provider.requests.length
    const again = await callModel(url, messages.slice(0, -1), { ...SESSION, ...way, body: BODY })
    expect(again.governor).toEqual(last?.governor)
    expect(provider.requests).toHaveLength(asked)
  })

  it.each([400, 422, 500])('is not passed by an upstream that refuses the blocked results with %i', async (status) => {
    const { url } = await startBoth((request, number): Answer => {
      if (request.body.includes(`"content":"[GOVERNOR]`)) return { status, body: { error: { message: 'no' } } }
      return { calls: [offers(request, 'spawn') ? spawn(number) : READ] }
    })
    const { steps } = await runAgent(url, START, { ...SESSION, ...way, body: BODY, max: 4 })
    expect(namesOf(steps).slice(0, 3)).toEqual([['spawn'], ['spawn'], ['read']])
  })
})

it('what the rows of guards say is known as a text of Governor', () => {
  const said = Object.values<{ notices: readonly object[] }>(GUARD_REASONS).flatMap(({ notices }) => notices)
  expect(NOTICES).toEqual(expect.arrayContaining(said))
})

it('what two replicas remember for a guard is added', () => {
  const counted = (spawned: number) => ({ ...NEW_SESSION, guards: { [NAME]: { spawned } } })
  expect(mergeSessions(counted(1), counted(3), counted(2)).guards).toMatchObject({ [NAME]: { spawned: 4 } })
  expect(mergeSessions(undefined, counted(3), NEW_SESSION).guards).toEqual(counted(3).guards)
  expect(mergeSessions(counted(1), counted(3), counted(2), true).guards).toMatchObject({ [NAME]: { spawned: 3 } })
})
