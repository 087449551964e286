/** The texts of a harness that the configuration adds to those that Governor knows. */
import { expect, it } from 'vitest'
import { checkConfig } from '../../src/config/load.ts'
import { registryOf } from '../../src/config/policies.ts'
import { countSummaries } from '../../src/core/harness/match.ts'

it('takes a configured text that says it is a summary for one, and no other text', () => {
  const scaffolding = {
    tags: ['note', 'compacted-work'],
    prefixes: ['OUR HARNESS: summary of the work:', 'OUR HARNESS:'],
  }
  const registry = registryOf(checkConfig({ sessions: { scaffolding } }, 'test'))
  const count = (text: string) => countSummaries([text], registry)
  expect(count('OUR HARNESS: summary of the work: two files were read.')).toBe(1)
  expect(count('<compacted-work>Two files were read.</compacted-work>')).toBe(1)
  expect(count('<note>Go on.</note> OUR HARNESS: summary of the work: none.')).toBe(1)
  for (const text of ['OUR HARNESS: go on.', '<note>A summary.</note>', 'Write a summary.']) expect(count(text)).toBe(0)
})
