/** Regular expressions: one that takes more than linear time lets a single text stop every request. */
import { analyse } from 'scslre'
import { expect, it } from 'vitest'
import { patternsOf } from '../../scripts/patterns.mjs'
import { readsAgain } from './backtracking.ts'

it('no regular expression of the program can take more than linear time', async () => {
  const patterns = await patternsOf()
  // Literals in every folder, and those that are put together while a file is loaded.
  expect(patterns.length).toBeGreaterThan(200)
  expect(patterns.map(({ file }) => file)).toContain('core/loop/tool-result.ts')
  const slow = patterns.filter(({ source, flags }) => analyse({ source, flags }).reports.length > 0)
  expect(slow).toEqual([])
})

it('no regular expression reads a text of several repeated characters again from each start', async () => {
  const patterns = await patternsOf()
  expect(patterns.filter(readsAgain)).toEqual([])
})

it.each([
  ['starts at each quote and reads up to the end', String.raw`"[^"\\]*(?:\\[\s\S][^"\\]*)*"`, true],
  ['takes a text that is not closed up to the end', String.raw`"[^"\\]*(?:\\[\s\S][^"\\]*)*"?`, false],
  ['starts within its own optional repetition', 'a(?:(?:ba)*c)?', true],
  ['shares a text between two repetitions', '^(?:ab)*(?:ab)*c', true],
  ['reads a repetition in two ways', '^(?:ab|abab)*c', true],
  ['cannot start within its repetition', '%(?:25)*2f', false],
])('an expression that %s: %s is found to read again: %s', (_, source, isFound) => {
  expect(readsAgain({ source, flags: '' })).toBe(isFound)
})

it('an expression that takes quadratic time would be found', () => {
  expect(analyse({ source: ' +$', flags: '' }).reports).toHaveLength(1)
  expect(analyse({ source: '^a*(?:b|a*)c', flags: '' }).reports.length).toBeGreaterThan(0)
})
