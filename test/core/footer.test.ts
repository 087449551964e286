import { describe, expect, it } from 'vitest'
import { beginReply, isRealAnswer, mayStillBeMarkup } from '../../src/core/conversation/real-answer.ts'
import { footerAfter, footerOf, type Limit, textWithFooter, withoutFooter } from '../../src/core/terminal.ts'

const iterations = { name: 'iterations', used: 301, max: 300 } as const

describe('a footer', () => {
  it.each<[string, Limit]>([
    ['300 of 300 iterations', { meter: iterations }],
    ['20 of 20 tool calls', { meter: { name: 'tool_calls', used: 22, max: 20 } }],
    ['2M of 2M tokens', { meter: { name: 'tokens', used: 2_100_000, max: 2_000_000 } }],
    ['$5.00 of $5.00', { meter: { name: 'cost', used: 5.131, max: 5 } }],
    ['300s of 300s', { meter: { name: 'seconds', used: 300.4, max: 300 } }],
    ['the agent was in a loop', { meter: iterations, reason: 'loop_guard' }],
    ['an operator stopped the run', { meter: { ...iterations, max: 0 }, reason: 'operator' }],
  ])('says “%s”', (words, limit) => {
    expect(footerOf(limit)).toBe(`— stopped by governor: ${words}`)
  })

  const footer = footerOf({ meter: iterations })

  it('is no answer by itself, and does not hide one', () => {
    expect(isRealAnswer(footer)).toBe(false)
    expect(isRealAnswer(`<think>So.</think>\n${footer}`)).toBe(false)
    expect(isRealAnswer(`It is 42.\n\n${footer}`)).toBe(true)
    expect(isRealAnswer(`${footer}\nIt is 42.`)).toBe(true)
    expect(mayStillBeMarkup(beginReply(false), footer.slice(0, 5))).toBe(true)
    expect(mayStillBeMarkup(beginReply(false), '— not')).toBe(false)
  })

  it('is taken off the end of a text that a client sends back, and of no other place', () => {
    expect(withoutFooter(`It is 42.\n\n${footer}\n`)).toBe('It is 42.')
    expect(withoutFooter(footer)).toBe('')
    for (const text of ['It is 42.', `${footer}\nIt is 42.`, `Look: ${footer}`]) expect(withoutFooter(text)).toBe(text)
  })

  it('follows a text after a blank line, once', () => {
    expect(textWithFooter({ text: 'It is 42.', footer })).toBe(`It is 42.\n\n${footer}`)
    expect(textWithFooter({ text: `It is 42.\n\n${footer}\n`, footer })).toBe(`It is 42.\n\n${footer}\n`)
    expect(textWithFooter({ text: '', footer })).toBe(footer)
    expect(textWithFooter({ text: 'It is 42.' })).toBe('It is 42.')
    expect(footerAfter('It is 42.', undefined)).toBeUndefined()
  })
})
