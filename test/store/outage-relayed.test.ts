/** Agents whose answers have call ids, over replicas that lose Redis: what any order of faults does to their counts. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { countRequest } from '../../src/core/session/count-request.ts'
import { lacking } from '../../src/core/session/merge.ts'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { noteAnswer, noteRelayed, releaseIteration } from '../../src/core/session/transitions.ts'
import { sessionKey } from '../../src/store/store.ts'
import { called, type Message, requestFacts, requestOf, result, system, user } from '../core/transcript.ts'
import { type Link, sessionsOf, startServer } from './values-server.ts'

const KEY = sessionKey('me', 'a')
const REPLICAS = 3
const MOST_MISSED = 3

let opened = 0

function openReplica(server: ReturnType<typeof startServer>, begin: Link = 'up') {
  const name = `r${opened++}`
  let link: Link = begin
  let knows = begin === 'up'
  let isBack = false
  let missed = 0
  /** It notices that Redis is away. */
  const notice = () => {
    if (link === 'up') return
    if (knows) values.suspect()
    knows = false
  }
  const remote = server.remote(
    () => knows,
    () => {
      // The third answer in a row that comes too late ends the use of Redis.
      if (link === 'late' && ++missed === MOST_MISSED) notice()
      return link
    },
  )
  const values = sessionsOf(remote, name, (session) => (isBack ? lacking(session) : session))
  return {
    values,
    link: () => link,
    set(to: 'late' | 'refused') {
      link = to
    },
    notice,
    async mend() {
      if (link !== 'up') isBack = true
      link = 'up'
      missed = 0
      knows = true
      await values.heal()
    },
  }
}

type Replica = ReturnType<typeof openReplica>

/** What becomes of a request that was counted: `cut`: its answer breaks off; `gone`: nobody says that it failed. */
const OUTCOMES = ['answered', 'released', 'cut', 'gone'] as const

/** `at`: which replica; unset where the event befalls all of them. */
type Event =
  | {
      readonly kind: 'step'
      readonly at: number
      readonly outcome: (typeof OUTCOMES)[number]
      readonly isLate: boolean
    }
  | { readonly kind: 'late' | 'refused' | 'notice' | 'mend' | 'kill'; readonly at: number | undefined }
  | { readonly kind: 'empty' }

/** The number that a request got, the one that it is due, and how many answers came from a replica without Redis. */
interface Step {
  readonly given: number
  readonly due: number
  readonly alone: number
}

/** An agent that sends a request again, in the same bytes, until it has a whole answer. */
function startAgent(thread: string) {
  let messages: readonly Message[] = [system('You work.'), user('Work.')]
  let due = 1
  let calls = 0
  let alone = 0
  let record: (() => Promise<unknown>) | undefined
  return async ({ values, link }: Replica, outcome: (typeof OUTCOMES)[number], isLate: boolean): Promise<Step> => {
    const id = `call ${++calls}`
    const operation = `operation ${calls}`
    const facts = requestFacts(messages)
    const counted = { fingerprint: facts.fingerprint, thread }
    const change = (by: (session: Session) => Session) =>
      values.update(KEY, (session = NEW_SESSION) => ({ value: by(session), result: undefined }))
    const { iteration } = await values.update(KEY, (session = NEW_SESSION) => {
      const request = requestOf(facts, { now: calls * 1_000, operation, thread })
      const { session: value, result } = countRequest(session, request)
      return { value, result }
    })
    // What an answer used may be recorded when the next request has come.
    await record?.()
    record = undefined
    const step = { given: iteration, due, alone }
    const callIds = requestFacts([...messages, called(id)]).callIds.at(-1) ?? []
    const isFirst = due === 1 ? true : undefined
    const answer = { usage: { input: 1, output: 1, estimated: false }, ids: [], requestBytes: 0 }
    if (outcome === 'answered') {
      await change((session) => noteRelayed(session, counted, { operation, callIds, isFirst }))
      messages = [...messages, called(id), result(id)]
      due++
      if (link() !== 'up') alone++
      record = () => change((session) => noteAnswer(session, counted, answer))
      if (!isLate) await record()
    } else if (outcome === 'cut') {
      await change((session) => noteRelayed(session, counted, { operation, callIds, isFirst, isCut: true }))
      await change((session) => noteAnswer(session, counted, { ...answer, isCut: true }))
    }
    if (outcome === 'cut' || outcome === 'released') await change((session) => releaseIteration(session, counted))
    return step
  }
}

async function play(events: readonly Event[], thread: string): Promise<readonly Step[]> {
  const server = startServer()
  const replicas = Array.from({ length: REPLICAS }, () => openReplica(server))
  const send = startAgent(thread)
  const steps: Step[] = []
  for (const event of events) {
    if (event.kind === 'empty') server.empty()
    else
      for (const [at, replica] of replicas.entries()) {
        if (event.at !== undefined && event.at !== at) continue
        // One that starts while others are still alone knows nothing of that.
        const mayStart = replica.link() !== 'up' || replicas.every((one) => one.link() === 'up')
        if (event.kind === 'step') steps.push(await send(replica, event.outcome, event.isLate))
        else if (event.kind === 'notice') replica.notice()
        else if (event.kind === 'mend') await replica.mend()
        else if (event.kind !== 'kill') replica.set(event.kind)
        else if (mayStart) replicas[at] = openReplica(server, replica.link())
      }
  }
  return steps
}

const AT = fc.nat(REPLICAS - 1)
const NONE = fc.constant(undefined)
const step: fc.Arbitrary<Event> = fc.record({
  kind: fc.constant('step' as const),
  at: AT,
  outcome: fc.oneof({ weight: 9, arbitrary: fc.constant('answered' as const) }, fc.constantFrom(...OUTCOMES)),
  isLate: fc.boolean(),
})
const empty: fc.Arbitrary<Event> = fc.constant({ kind: 'empty' as const })
const fault = (kind: 'late' | 'refused' | 'notice' | 'mend' | 'kill', at: fc.Arbitrary<number | undefined>) =>
  fc.record({ kind: fc.constant(kind), at })
/** All replicas lose Redis at once, and notice that and are back one by one. */
const ofAll = [fault('late', NONE), fault('refused', NONE), fault('notice', AT), fault('mend', AT)]
const ofOne = [fault('late', AT), fault('refused', AT), fault('notice', AT), fault('mend', AT)]
const eventsWith = (...faults: readonly fc.Arbitrary<Event>[]) =>
  fc.array(fc.oneof({ weight: 3 * faults.length + 1, arbitrary: step }, ...faults), { maxLength: 40, size: 'max' })

describe.each(['', 'agent-1'])('an agent whose answers have call ids, in a thread with the name "%s"', (thread) => {
  const holds = async (events: fc.Arbitrary<readonly Event[]>, isRight: (step: Step) => boolean) => {
    const property = fc.asyncProperty(events, async (list) => {
      expect((await play(list, thread)).filter((one) => !isRight(one))).toEqual([])
    })
    await fc.assert(property, { numRuns: 300 })
  }

  it('gets each number once, whichever replica it asks, and however often it sends a request', async () => {
    await holds(eventsWith(), ({ given, due }) => given === due)
  })

  it('gets each number once while all replicas lose Redis, end and start again, and Redis loses its data', async () => {
    await holds(eventsWith(...ofAll, fault('kill', AT), empty), ({ given, due }) => given === due)
  })

  it('gets no number too early where single replicas lose Redis, and misses no answer but what came from those', async () => {
    await holds(eventsWith(...ofOne), ({ given, due, alone }) => given <= due && given >= due - alone)
  })
})
