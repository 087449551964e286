/** What every coding agent must do behind Governor: the same as without, and end well when it is warned, refused, stopped. */
import { expect, it, onTestFinished } from 'vitest'
import { isGemini, mayCall } from '../support/gemini.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type Answer, type Received, type Script, startProvider } from '../support/provider.ts'
import type { Program, Ran } from './program.ts'
import { type Result, record, seenIn } from './results.ts'

/** Runs the agent on a prompt against the API at `url`. */
export type Drive = (url: string, prompt: string) => Promise<Ran>

export interface Agent {
  /** Its row among the results. */
  readonly client: string
  readonly program: Program
  /** What a user sets, as the documents write it. */
  readonly setting: string
  /** A call of its shell tool. */
  call(command: string): { readonly name: string; readonly arguments: unknown }
  /** Is this a step of its run, and not a title or a probe? */
  isTurn(request: Received): boolean
  /** The header that it names its session in. */
  readonly session?: string
  /** Which of its equal calls in a row is blocked; 7 if it does nothing about them itself. */
  readonly blockedAt?: number
  /** The loop guard with which that one is blocked, where the defaults would come later than what the agent does itself. */
  readonly guard?: Readonly<Record<string, number>>
}

/** The names of APIs in the documents. */
const APIS: Readonly<Record<string, string>> = {
  chat: 'Chat Completions',
  messages: 'Messages',
  responses: 'Responses',
  gemini: 'Gemini',
}

const PROMPT = 'Run the steps you planned, one after the other, then say that you are done.'
const DONE = 'All done: 42.'
const STOPPED = 'This is what I found so far.'

/** Answers the steps of the run by number, and whatever else is asked with a few words. */
function turns(agent: Agent, answer: (request: Received, turn: number) => Answer): Script {
  let turn = 0
  return (request) => (agent.isTurn(request) ? answer(request, ++turn) : { text: 'Steps' })
}

function choosesNone(request: Received): boolean {
  const { json } = request
  if (isGemini(request)) return !mayCall(request)
  const choice = json.tool_choice as { type?: string } | string | undefined
  return choice === 'none' || (typeof choice === 'object' && choice.type === 'none')
}

/** Says that some steps are to be run, then that all is done. */
const steps = (agent: Agent, count: number) => (_: Received, turn: number) =>
  turn <= count ? { text: 'Working. ', calls: [agent.call(`echo step-${turn}`)] } : { text: DONE }

export function behavesBehindGovernor(drive: Drive, agent: Agent): void {
  const stepsOf = (requests: readonly Received[]) => requests.filter((request) => agent.isTurn(request))
  const { name, version } = agent.program
  const note = (seen: Partial<Result>) =>
    record(agent.client, { package: name, version, setting: agent.setting, ...seen })
  const ended = (ran: Ran, text: string) => {
    expect(ran.code, ran.stderr + ran.stdout).toBe(0)
    expect(ran.stdout).toContain(text)
  }

  it('gives the same answer after the same steps as without Governor', async () => {
    const direct = await startProvider(turns(agent, steps(agent, 3)))
    const behind = await startProvider(turns(agent, steps(agent, 3)))
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url, events } = await startGovernor(behind.url)
    const without = await drive(direct.url, PROMPT)
    const through = await drive(url, PROMPT)
    ended(without, DONE)
    expect(through).toEqual(without)
    expect(behind.requests).toHaveLength(direct.requests.length)
    expect(stepsOf(behind.requests)).toHaveLength(4)
    const ends = events.flatMap((event) => (event.kind === 'request_ended' && event.iteration ? [event] : []))
    expect(ends.map(({ iteration }) => iteration)).toEqual([1, 2, 3, 4])
    expect(ends.every(({ verdict }) => verdict === 'allow')).toBe(true)
    const named = agent.session && behind.requests.at(-1)?.header(agent.session)
    if (named !== undefined) expect(ends.at(-1)?.session).toBe(named)
    expect(new Set(ends.slice(1).map(({ session }) => session)).size).toBe(1)
    const [{ dialect = '', method = '' } = {}] = ends
    note({ over: `${APIS[dialect]} over ${method === 'POST' ? 'HTTP' : method}` })
  })

  it('gets a notice when its budget runs low', async () => {
    const { url, provider } = await startBoth(turns(agent, steps(agent, 4)), {
      budget: { max_iterations: 6, adaptive: false },
    })
    const ran = await drive(url, PROMPT)
    ended(ran, DONE)
    const told = stepsOf(provider.requests).map(({ body }) => /\[BUDGET: Iteration (\d)\/6/.exec(body.toString())?.[1])
    expect(told).toEqual([undefined, undefined, undefined, undefined, '5'])
    note({ caution: seenIn(ran, DONE) })
  })

  it('gets the model’s answer when it is stopped', async () => {
    const { url, provider, events } = await startBoth(
      turns(agent, (request, turn) =>
        choosesNone(request) ? { text: STOPPED } : { calls: [agent.call(`echo step-${turn}`)] },
      ),
      { budget: { max_iterations: 4 } },
    )
    const ran = await drive(url, PROMPT)
    ended(ran, STOPPED)
    expect(stepsOf(provider.requests)).toHaveLength(5)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'stopped', reason: 'max_iterations', by: 'model' }))
    note({ stop: seenIn(ran, STOPPED) })
  })

  it('continues with the model’s next answer when its calls are blocked', async () => {
    const { url, provider, events } = await startBoth(
      turns(agent, ({ body }) =>
        body.includes('[LOOP GUARD] Blocked')
          ? { text: DONE }
          : { calls: [agent.call('echo the same words each time')] },
      ),
      { loop_guard: agent.guard ?? {} },
    )
    const ran = await drive(url, PROMPT)
    ended(ran, DONE)
    expect(stepsOf(provider.requests)).toHaveLength((agent.blockedAt ?? 7) + 1)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'call_blocked' }))
    const set = Object.entries(agent.guard ?? {}).map(([key, value]) => `, with \`${key}: ${value}\``)
    note({ block: seenIn(ran, DONE) + set.join('') })
  })
}
