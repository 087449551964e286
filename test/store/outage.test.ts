/** Agents whose replicas lose Redis, or whose Redis loses its data: what any order of these events does to their counts. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { countRequest } from '../../src/core/session/count-request.ts'
import { NEW_SESSION } from '../../src/core/session/session.ts'
import { noteAnswer } from '../../src/core/session/transitions.ts'
import { sessionKey } from '../../src/store/store.ts'
import { called, type Message, requestFacts, requestOf, result, said, system, user } from '../core/transcript.ts'
import { type Link, sessionsOf, startServer } from './values-server.ts'

const KEY = sessionKey('me', 'a')
const REPLICAS = 3
const TOKENS = 10

function openReplica(server: ReturnType<typeof startServer>, name: string) {
  let isUp = true
  const values = sessionsOf(
    server.remote(() => isUp),
    name,
  )
  return {
    values,
    cut() {
      isUp = false
    },
    async mend() {
      isUp = true
      await values.heal()
    },
  }
}

type Replica = ReturnType<typeof openReplica>

/** An agent whose user says the same words again and again. `isNewChat`: each time in a new conversation. */
function startAgent(isNewChat: boolean) {
  const begin = [system('You work.'), user('continue')]
  let messages: readonly Message[] = begin
  let iteration = 0
  let calls = 0
  let clock = 1_000
  return {
    /** Sends its next request through a replica; returns the number that it got, and the number that it is due. */
    async step({ values }: Replica, isLast: boolean) {
      iteration++
      clock += 1_000
      const now = clock
      const facts = requestFacts(messages)
      const request = { fingerprint: facts.fingerprint, thread: '' }
      const counted = await values.update(KEY, (session = NEW_SESSION) => {
        const { session: value, result } = countRequest(
          session,
          requestOf(facts, { now, operation: `operation ${clock}` }),
        )
        return { value, result }
      })
      const usage = { input: TOKENS, output: 0, cachedInput: 0, cost: 0, estimated: false }
      const answer = { usage, ids: [], requestBytes: 0, callsNothing: isLast }
      await values.update(KEY, (session = NEW_SESSION) => ({
        value: noteAnswer(session, request, answer),
        result: undefined,
      }))
      const due = iteration
      const id = `call ${++calls}`
      messages = [...messages, ...(isLast ? [said(`done ${id}`)] : [called(id), result(id)])]
      if (isLast) {
        messages = isNewChat ? begin : [...messages, user('continue')]
        iteration = 0
      }
      return { given: counted.iteration, due }
    },
  }
}

/** `at`: which replica; unset where the event befalls all of them. */
type Event =
  | { readonly kind: 'step'; readonly at: number; readonly isLast: boolean }
  | { readonly kind: 'flush' }
  | { readonly kind: 'cut' | 'mend'; readonly at: number | undefined }

const ALL = Array.from({ length: REPLICAS }, (_, at) => at)
const step: fc.Arbitrary<Event> = fc.record({
  kind: fc.constant('step' as const),
  at: fc.constantFrom(...ALL),
  isLast: fc.boolean(),
})
const flush: fc.Arbitrary<Event> = fc.constant({ kind: 'flush' as const })
const outage = (at: fc.Arbitrary<number | undefined>): fc.Arbitrary<Event> =>
  fc.record({ kind: fc.constantFrom('cut' as const, 'mend' as const), at })
const eventsWith = (...faults: readonly fc.Arbitrary<Event>[]) =>
  fc.array(fc.oneof({ weight: 8, arbitrary: step }, ...faults), { maxLength: 40 })

async function play(events: readonly Event[], isNewChat: boolean) {
  const server = startServer()
  const replicas = ALL.map((at) => openReplica(server, `r${at}`))
  const agent = startAgent(isNewChat)
  const steps: { readonly given: number; readonly due: number }[] = []
  for (const event of events) {
    if (event.kind === 'flush') server.empty()
    else
      for (const replica of event.at === undefined ? replicas : replicas.slice(event.at, event.at + 1))
        if (event.kind === 'step') steps.push(await agent.step(replica, event.isLast))
        else await replica[event.kind]()
  }
  for (const replica of replicas) await replica.mend()
  return { steps, session: await replicas[0]?.values.get(KEY) }
}

async function expectItsOwnCounts(events: fc.Arbitrary<readonly Event[]>, isNewChat: boolean) {
  const property = fc.asyncProperty(events, async (list) => {
    const { steps } = await play(list, isNewChat)
    expect(steps.map(({ given }) => given)).toEqual(steps.map(({ due }) => due))
  })
  await fc.assert(property, { numRuns: 300 })
}

describe('an agent whose user repeats the same words gets the iterations that it would get alone', () => {
  it('in one conversation, whichever replicas lose Redis and whatever Redis loses', async () => {
    await expectItsOwnCounts(eventsWith(flush, outage(fc.constantFrom(...ALL))), false)
  })

  it('each time in a new conversation, whenever Redis is gone or loses its data', async () => {
    await expectItsOwnCounts(eventsWith(flush, outage(fc.constant(undefined))), true)
  })
})

describe('a prompt that is sent again after Redis has lost its data', () => {
  it('begins a run, as another replica may have ended the one that began with the same words', async () => {
    const { steps } = await play(
      [
        { kind: 'step', at: 0, isLast: false },
        { kind: 'step', at: 1, isLast: true },
        { kind: 'flush' },
        { kind: 'step', at: 0, isLast: true },
        { kind: 'step', at: 1, isLast: false },
        { kind: 'step', at: 0, isLast: false },
      ],
      true,
    )
    expect(steps.map(({ given }) => given)).toEqual([1, 2, 1, 1, 2])
  })
})

describe('a session whose replicas lose Redis', () => {
  it('has the usage of every answer once when all of them are back, in any order of events', async () => {
    const property = fc.asyncProperty(
      eventsWith(outage(fc.constantFrom(...ALL))),
      fc.boolean(),
      async (list, isNewChat) => {
        const { steps, session } = await play(list, isNewChat)
        expect(session?.counts.input ?? 0).toBe(TOKENS * steps.length)
      },
    )
    await fc.assert(property, { numRuns: 300 })
  })
})

describe('counts of replicas whose writes are refused, or made without an answer', () => {
  /** Counts at the replicas in turn, whose links are then as the list says; returns what is counted in the end. */
  async function countWith(list: readonly { readonly at: number; readonly link: Link }[]) {
    const server = startServer()
    const links: Link[] = ['up', 'up']
    const replicas = links.map((_, at) =>
      sessionsOf(
        server.remote(
          () => true,
          () => links[at] ?? 'up',
        ),
        `r${at}`,
      ),
    )
    for (const { at, link } of list) {
      links[at] = link
      await replicas[at]?.update(KEY, (session = NEW_SESSION) => {
        const input = (session.counts.input ?? 0) + TOKENS
        return { value: { ...session, counts: { input } }, result: undefined }
      })
    }
    links.fill('up')
    for (const replica of replicas) await replica.heal()
    return (await replicas[0]?.get(KEY))?.counts.input
  }
  const several = (at: number, link: Link, count: number) => Array.from({ length: count }, () => ({ at, link }))

  it('are all there once when Redis is back, also where many writes in a row had failed', async () => {
    const before = [...several(0, 'up', 1), ...several(0, 'late', 1)]
    for (const link of ['refused', 'late'] as const) {
      const list = [...before, ...several(0, link, 20), ...several(1, 'up', 1)]
      expect(await countWith(list)).toBe(23 * TOKENS)
    }
  })

  it('are all there once when Redis is back, whichever of them failed', async () => {
    const link = fc.constantFrom<Link[]>('up', 'refused', 'late')
    const events = fc.array(fc.record({ at: fc.nat(1), link }), { minLength: 1, maxLength: 30 })
    const property = fc.asyncProperty(events, async (list) => {
      expect(await countWith(list)).toBe(list.length * TOKENS)
    })
    await fc.assert(property, { numRuns: 500 })
  })
})
