/** Regular expressions: one that takes more than linear time lets a single text stop every request. */
import { analyse } from 'scslre'
import { expect, it } from 'vitest'
import { patternsOf } from '../../scripts/patterns.mjs'

it('no regular expression of the program can take more than linear time', async () => {
  const patterns = await patternsOf()
  // Literals in every folder, and those that are put together while a file is loaded.
  expect(patterns.length).toBeGreaterThan(200)
  expect(patterns.map(({ file }) => file)).toContain('core/loop/tool-result.ts')
  const slow = patterns.filter(({ source, flags }) => analyse({ source, flags }).reports.length > 0)
  expect(slow).toEqual([])
})

it('an expression that takes quadratic time would be found', () => {
  expect(analyse({ source: ' +$', flags: '' }).reports).toHaveLength(1)
  expect(analyse({ source: '^a*(?:b|a*)c', flags: '' }).reports.length).toBeGreaterThan(0)
})
