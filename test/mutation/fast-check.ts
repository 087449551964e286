/** Shorter properties, without a search for the smallest failing input: that a test fails is enough here. */
import { vi } from 'vitest'

const RUNS = 30

vi.mock('fast-check', async (original) => {
  const { default: fc } = await original<typeof import('fast-check')>()
  const assert: typeof fc.assert = (property, { numRuns = RUNS, ...rest } = {}) =>
    fc.assert(property as never, { ...rest, numRuns: Math.min(numRuns, RUNS), endOnFailure: true } as never)
  return { default: { ...fc, assert } }
})
