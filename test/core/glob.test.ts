import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { globMatches } from '../../src/core/text/glob.ts'

describe('a glob', () => {
  it.each([
    { glob: 'process', yes: ['process'], no: ['processes', 'Process', '', 'my_process'] },
    { glob: 'browser_*', yes: ['browser_', 'browser_click'], no: ['browser', 'my_browser_click'] },
    { glob: '*_status', yes: ['_status', 'job_status', 'a_status_status'], no: ['status', 'job_status_'] },
    { glob: 'get_?', yes: ['get_a', 'get_*'], no: ['get_', 'get_ab'] },
    { glob: '*', yes: ['', 'anything.at+all'], no: [] },
    { glob: 'a.b', yes: ['a.b'], no: ['axb'] },
  ])('$glob matches whole names only', ({ glob, yes, no }) => {
    expect(yes.filter((name) => !globMatches(glob, name))).toEqual([])
    expect(no.filter((name) => globMatches(glob, name))).toEqual([])
  })

  it('matches the same names as the equivalent regular expression, for any glob and name', () => {
    const text = fc.string({ unit: fc.constantFrom('a', 'b', '*', '?'), maxLength: 8 })
    fc.assert(
      fc.property(text, text, (glob, name) => {
        const pattern = new RegExp(`^${glob.replaceAll('*', '[^]*').replaceAll('?', '[^]')}$`)
        expect(globMatches(glob, name)).toBe(pattern.test(name))
      }),
      { numRuns: 2_000 },
    )
  })
})
