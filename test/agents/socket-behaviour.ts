/** What an agent must do behind Governor over a WebSocket of the Responses API. */
import { expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import type { ScriptedCall } from '../support/provider.ts'
import { type ReceivedMessage, type SocketAnswer, startSocketProvider } from '../support/websocket-provider.ts'
import type { Drive } from './behaviour.ts'
import type { Program, Ran } from './program.ts'
import { type Result, record, seenIn } from './results.ts'

export const PROMPT = 'Run the steps you planned, one after the other, then say that you are done.'
export const DONE = 'All done: 42.'
const STOPPED = 'This is what I found so far.'
const HEADERS = ['x-codex-turn-state: t1', 'x-reasoning-included: true', 'x-models-etag: e1', 'openai-model: gpt-5']

export interface SocketAgent {
  /** Its row among the results. */
  readonly client: string
  readonly program: Program
  /** What a user sets, as the documents write it. */
  readonly setting: string
  /** A call of its shell tool. */
  call(command: string): ScriptedCall
}

/** The answer to a step of the run, numbered from 1. */
export type Turn = (message: ReceivedMessage, turn: number) => SocketAnswer

/** A message that offers tools is a step of the run, and no title or probe. */
const isTurn = ({ json }: ReceivedMessage) => (json.tools ?? []).length > 0 || json['tools'] === undefined

/** Starts a provider of Responses over WebSocket that answers the steps of a run. */
export async function startTurns(turn: Turn) {
  let turns = 0
  const script = (message: ReceivedMessage) => (isTurn(message) ? turn(message, ++turns) : { text: 'Steps' })
  const provider = await startSocketProvider(script, { headers: HEADERS })
  onTestFinished(() => provider.close())
  return provider
}

/** Starts such a provider, and Governor before it. */
export async function startBoth(turn: Turn, config: { [key: string]: unknown } = {}) {
  const provider = await startTurns(turn)
  const governor = await startGovernor(provider.url, config)
  const ended = () => governor.events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
  return { provider, ended, ...governor }
}

/** Says that some steps are to be run, then that all is done. */
export function steps({ call }: SocketAgent, count: number): Turn {
  return (_, turn) => (turn <= count ? { text: 'Working. ', calls: [call(`echo step-${turn}`)] } : { text: DONE })
}

/** Expects that a run ended well and printed a text. */
export function finished(ran: Ran, text: string): void {
  expect(ran.code, ran.stderr + ran.stdout).toBe(0)
  expect(ran.stdout).toContain(text)
  expect(ran.stderr).not.toMatch(/ERROR|[Rr]econnecting/)
}

/** Notes what was seen of an agent over its WebSocket. */
export function note({ client, program: { name, version }, setting }: SocketAgent, seen: Partial<Result>): void {
  record(client, { package: name, version, setting, over: 'Responses over WebSocket', ...seen })
}

/** Declares the tests of an agent that is warned, blocked and stopped over its WebSocket alone. */
export function behavesOverWebSocket(drive: Drive, agent: SocketAgent): void {
  const { call } = agent

  it('gets a notice when its budget runs low', async () => {
    const { url, provider } = await startBoth(steps(agent, 4), { budget: { max_iterations: 6, adaptive: false } })
    const ran = await drive(url, PROMPT)
    finished(ran, DONE)
    const turns = provider.received.filter((message) => isTurn(message) && message.json['generate'] !== false)
    const told = turns.map(({ text }) => /\[BUDGET: Iteration (\d)\/6/.exec(text)?.[1])
    expect(told).toEqual([undefined, undefined, undefined, undefined, '5'])
    note(agent, { caution: seenIn(ran, DONE) })
  })

  it('gets the model’s answer when it is stopped', async () => {
    const { url, events, ended } = await startBoth(
      ({ json }, turn) => (json.tool_choice === 'none' ? { text: STOPPED } : { calls: [call(`echo step-${turn}`)] }),
      { budget: { max_iterations: 4 } },
    )
    const ran = await drive(url, PROMPT)
    finished(ran, STOPPED)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'stopped', reason: 'max_iterations', by: 'model' }))
    const methods = ended().flatMap(({ iteration, method }) => (iteration === undefined ? [] : [method]))
    expect(new Set(methods)).toEqual(new Set(['WEBSOCKET']))
    note(agent, { stop: seenIn(ran, STOPPED) })
  })

  it('continues with the model’s next answer when its calls are blocked', async () => {
    const { url, events } = await startBoth(({ items }, turn) => {
      if (JSON.stringify(items).includes('[LOOP GUARD] Blocked')) return { text: DONE }
      expect(turn).toBeLessThan(8)
      return { calls: [call('echo the same words each time')] }
    })
    const ran = await drive(url, PROMPT)
    finished(ran, DONE)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'call_blocked' }))
    note(agent, { block: seenIn(ran, DONE) })
  })
}
