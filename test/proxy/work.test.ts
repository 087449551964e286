/** The work of reading one request. It is counted, because a time depends more on the machine than on the program. */
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { STEPS_PER_VALUE, TooMuchToRead } from '../../src/core/bounds/work.ts'
import { hashOfBytes } from '../../src/core/hash.ts'
import { INITIAL_LOOP_STATE, observeTranscript } from '../../src/core/loop/loop-state.ts'
import { factsOf } from '../../src/core/session/request-facts.ts'
import { chat } from '../../src/dialect/chat/index.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'
import { JsonScanError } from '../../src/json/scan.ts'
import { namedSession } from '../../src/proxy/session/find-session.ts'
import { readInTurns } from '../../src/proxy/session/read-transcript.ts'
import { POLICY } from '../core/loop/loop-story.ts'
import { registry } from '../core/transcript.ts'
import { PLACES, SHAPES } from '../support/foreign.ts'
import { countSteps } from '../support/steps.ts'

const DIALECTS = { chat, messages, responses }
const IDENTITY = {
  headers: [],
  threadHeaders: [],
  bodyFields: [['metadata', 'session_id'], ['metadata', 'user_id'], ['conversation']],
}

/** Counts the values that are built from JSON texts from now on, for the current test. */
function countBuilt(): () => number {
  const { parse } = JSON
  let built = 0
  JSON.parse = (text: string) => {
    const root: unknown = parse(text)
    const left: unknown[] = [root]
    while (left.length > 0) {
      const value = left.pop()
      built++
      if (typeof value === 'object' && value !== null) for (const one of Object.values(value)) left.push(one)
    }
    return root
  }
  onTestFinished(() => {
    JSON.parse = parse
  })
  return () => built
}

/** Reads a request as far as its evaluation does; returns the counted steps. */
async function read(dialect: keyof typeof DIALECTS, body: Buffer): Promise<number> {
  let steps = 0
  try {
    const request = DIALECTS[dialect].read({ path: '', body })
    if (!request) return 0
    const { conversation } = request
    try {
      const state = await readInTurns(request, registry)
      const facts = factsOf(state, conversation, hashOfBytes(body), registry, body.length)
      namedSession([], '', request, IDENTITY)
      request.demands()
      const { previousStep } = facts
      observeTranscript(INITIAL_LOOP_STATE, { conversation, state, registry, previousStep }, POLICY)
    } finally {
      steps = conversation.work?.steps ?? 0
    }
  } catch (error) {
    const isExpected = error instanceof TooMuchToRead || error instanceof SyntaxError
    if (!isExpected && !(error instanceof JsonScanError)) throw error
  }
  return steps
}

/** Values that a test's body has besides those in its place. */
const UNCOUNTED = 8
/** Steps that may be done in one go for a body of so many bytes: see core/bounds/work.ts. */
const inOneGo = (bytes: number) => 200_000 + 0.12 * bytes
/** The most values that are built of one body. */
const MAX_BUILT = 524_288

const LARGE = Object.values(SHAPES).map((shape) => shape(600_000))

describe('reading a request', () => {
  const cases = Object.entries(PLACES).flatMap(([dialect, places]) =>
    Object.entries(places).map(([place, make]) => ({ dialect: dialect as keyof typeof PLACES, place, make })),
  )

  it.each(cases)('builds few values from $place of $dialect, whatever that contains', async ({ dialect, make }) => {
    const built = countBuilt()
    const most = countSteps()
    for (const value of LARGE) {
      const body = Buffer.from(make(value))
      const before = built()
      await read(dialect, body)
      expect(built() - before).toBeLessThan(MAX_BUILT)
      // Reading stops at a text that is too much to read.
      expect(most()).toBeLessThan(2 * inOneGo(body.length))
    }
  })

  it('counts every value that it builds, with any content in any place', async () => {
    const built = countBuilt()
    const value = fc
      .tuple(fc.constantFrom(...Object.values(SHAPES)), fc.integer({ min: 0, max: 40_000 }))
      .map(([shape, size]) => shape(size))
    const body = fc.tuple(fc.constantFrom(...cases), value, value).map(([{ dialect, make }, first, second]) => ({
      dialect,
      body: Buffer.from(make(`[${first},{"type":"text","text":${second}}]`)),
    }))
    await fc.assert(
      fc.asyncProperty(body, async ({ dialect, body: bytes }) => {
        const before = built()
        const steps = await read(dialect, bytes)
        // The single values of fields such as `model` are not counted.
        expect((built() - before - UNCOUNTED) * STEPS_PER_VALUE).toBeLessThanOrEqual(steps)
      }),
      { numRuns: 60 },
    )
  })
})
