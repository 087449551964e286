import { describe, expect, it } from 'vitest'
import { checkConfig } from '../../src/config/load.ts'
import { policiesOf } from '../../src/config/policies.ts'
import { classify } from '../../src/overflow/classify.ts'
import type { RawReply } from '../../src/overflow/unwrap.ts'

const refused = (message: string, status = 400, more: object = {}) => ({
  status,
  body: { error: { message, ...more } },
})

/** The rows of a configuration with these quirks. */
const rowsOf = (...quirks: object[]) => policiesOf(checkConfig({ overflow: { quirks } }, 'test')).overflow.quirks

const meaningOf = (reply: RawReply, ...quirks: object[]) => classify(reply, { rows: rowsOf(...quirks) })

describe('a quirk in the configuration', () => {
  const house = {
    id: 'house',
    status: 400,
    text: 'budget of (?<limit>[\\d,]+) units',
    means: 'shrink_context',
  }

  it('is tried before the built-in rows and takes its limit from a named group', () => {
    expect(meaningOf(refused('over the Budget of 131,072 units'), house)).toEqual({
      quirk: 'house',
      overflow: { recovery: 'shrink_context', limit: 131_072 },
    })
    expect(meaningOf(refused('over the budget of 131,072 units', 422), house)).toBeUndefined()
  })

  it('takes the prompt size from a named group too, and numbers without a group from the message', () => {
    const text = 'limit=(?<limit>\\w+).*want=(?<prompt>\\d+)'
    const both = { id: 'both', text, means: 'shrink_context' }
    expect(meaningOf(refused('limit=128k, want=140000'), both)?.overflow).toEqual({
      recovery: 'shrink_context',
      limit: 128_000,
      promptTokens: 140_000,
    })
    const none = { id: 'none', text: 'too long', means: 'shrink_context' }
    expect(meaningOf(refused('Prompt is too long: 9001 tokens, max 8192'), none)?.overflow).toEqual({
      recovery: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    })
  })

  it('applies only if its status, code and text all match and its exclusion does not', () => {
    const row = {
      id: 'own',
      status: [400, 422],
      code: 'too_?big',
      text: 'no way',
      unless: 'weekend',
      means: 'compress_only',
    }
    const code = { code: 'TOO_BIG' }
    expect(meaningOf(refused('No way', 422, code), row)?.overflow).toEqual({ recovery: 'compress_only' })
    expect(meaningOf(refused('No way', 413, code), row)).toBeUndefined()
    expect(meaningOf(refused('No way', 422, { code: 'small' }), row)).toBeUndefined()
    expect(meaningOf(refused('Yes', 422, code), row)).toBeUndefined()
    expect(meaningOf(refused('No way at the Weekend', 422, code), row)).toBeUndefined()
  })

  it('may share its id with another row that has a different text', () => {
    const ways = ['first way', 'second way'].map((text) => ({ id: 'own', text, means: 'tier_downgrade' }))
    for (const message of ['the first way', 'the second way'])
      expect(meaningOf(refused(message), ...ways)?.quirk).toBe('own')
  })

  it('can mark an error as no overflow, or leave the numbers to the general reader', () => {
    const no = { id: 'own', text: 'prompt is too long', means: 'not_overflow' }
    expect(meaningOf(refused('prompt is too long: 9 tokens > 8 maximum'), no)).toBeUndefined()
    const yes = { id: 'own', code: '^77$', means: 'input_too_large' }
    expect(meaningOf(refused('The maximum is 8192 tokens', 400, { code: 77 }), yes)).toEqual({
      quirk: 'own',
      overflow: { recovery: 'shrink_context', limit: 8192 },
    })
  })

  it('matches the text as it is written, including quotes', () => {
    const own = { id: 'own', text: 'the "window" is (?<limit>\\d+)', means: 'shrink_context' }
    expect(meaningOf(refused('The "window" is 4096'), own)?.overflow).toMatchObject({ limit: 4096 })
  })

  it('is rejected when its pattern could be slow', () => {
    const row = (text: string) => () => rowsOf({ id: 'own', text, means: 'compress_only' })
    expect(row('(a)\\1')).toThrow(/escape/)
    expect(row('(?=a)b')).toThrow()
    expect(row('(unclosed')).toThrow()
  })

  // A backtracking engine would not end before the test times out.
  it('reads a long text with a pattern that would make a backtracking engine run forever', () => {
    const own = { id: 'own', text: '(a+)+$', means: 'compress_only' }
    expect(meaningOf(refused(`${'a'.repeat(60_000)}!`), own)).toBeUndefined()
  })
})
