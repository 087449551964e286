import { describe, expect, it } from 'vitest'
import { DEFAULT_TEXTS, fill } from '../../../src/core/budget/budget-notices.ts'
import { ALL_LIMITS } from '../../../src/core/budget/meters.ts'
import { SCOPES } from '../../../src/core/budget/scopes.ts'
import { buildRegistry, type HarnessText, humanText, isSummaryRequest } from '../../../src/core/harness/match.ts'
import { HARNESS_TEXTS, SUMMARY_REQUESTS } from '../../../src/core/harness/texts.ts'
import { blockText, loopNotice } from '../../../src/core/loop/loop-notices.ts'
import { PATTERNS, type Pattern } from '../../../src/core/loop/patterns.ts'
import { namesOf } from '../../../src/core/names.ts'

const registry = buildRegistry(HARNESS_TEXTS, SUMMARY_REQUESTS)
const of = (match: HarnessText['match']) =>
  HARNESS_TEXTS.filter((entry) => entry.match === match && entry.end === undefined).map(({ text }) => text)
const nameOf = (tag: string) => tag.replace(/>.*/, '')
/** All texts that have an end, complete. */
const ENDED = [
  ...HARNESS_TEXTS.flatMap(({ text, end }) => (end === undefined ? [] : [`${text} and more${end}`])),
  ...of('tag').map((tag) => `<${tag}>\nsomething\n</${nameOf(tag)}>`),
  ...of('tag').map((tag) => `<${tag} name="x">\nsomething\n</${nameOf(tag)}>`),
]
const humanOf = (...texts: string[]) => humanText(texts, registry)

const WRITTEN: readonly string[] = [
  ...of('exact'),
  ...of('prefix').map((prefix) => `${prefix} and whatever follows it.\nMore.`),
  ...ENDED,
  ...SUMMARY_REQUESTS.map((text) => text.replaceAll('{}', 'max_steps')),
]

const LOOPS = (Object.keys(PATTERNS) as Pattern[]).map((pattern) => ({
  pattern,
  tools: ['a', 'b'] as const,
  count: 3,
  span: 5,
}))

const {
  announce: _announce,
  trackerBegin: _begin,
  stop: _stop,
  fallback: _fallback,
  unpriced: _unpriced,
  operatorFallback: _operatorFallback,
  paused: _paused,
  closed: _closed,
  tooFast: _tooFast,
  ...SAID
} = DEFAULT_TEXTS
const BUDGET_NOTICES = Object.values(SAID).flatMap((template) =>
  ALL_LIMITS.flatMap((name) => namesOf(SCOPES).map((scope) => fill(template, { name, used: 19, max: 20, scope }))),
)

const folded = (text: string) => `  ${text.replace(/ /g, ' \n\t ')}\n`

describe('text that a harness writes in the role of a user', () => {
  it('is listed for every kind of match', () => {
    const kinds = [of('exact'), of('prefix'), of('tag'), of('human'), SUMMARY_REQUESTS]
    expect(kinds.every((texts) => texts.length > 0)).toBe(true)
  })

  it('is not human, for any known text', () => {
    expect(WRITTEN.filter((text) => humanOf(text) !== '')).toEqual([])
    expect(WRITTEN.filter((text) => humanOf(`\n ${text}\n`) !== '')).toEqual([])
  })

  it('is human when a sentence quotes it', () => {
    const sentences = WRITTEN.map((text) => `Why did you write "${text}" to me?`)
    expect(sentences.filter((sentence) => humanOf(sentence) !== sentence)).toEqual([])
  })

  it('is recognized with its white space collapsed', () => {
    const texts = [...of('exact'), ...of('prefix'), ...SUMMARY_REQUESTS.map((text) => text.replaceAll('{}', 'x'))]
    for (const text of texts) expect([text, humanOf(folded(text))]).toEqual([text, ''])
    for (const { text, end } of HARNESS_TEXTS) {
      if (end !== undefined) expect([text, humanOf(`${folded(text)}${end}`)]).toEqual([text, ''])
    }
  })

  it('ends at its known end, and text after that is human', () => {
    for (const text of ENDED) {
      expect(humanOf(`${text} Do this instead.`)).toBe('Do this instead.')
      expect(humanOf(`${text}\n\nDo this instead.`)).toBe('Do this instead.')
      expect(humanOf(`${text}\n${text}`)).toBe('')
    }
  })

  it.each([
    '<skill> is a tag in my XML, why is it not read?',
    '<system-reminder>',
    '# AGENTS.md instructions for the team: write them',
    '[Request interrupted by user: what does that mean?',
    'You appear to be repeating the same action, stop it',
    '[BUDGET: Iteration 3/20 is what I read. What is it?',
  ])('is human when its end is missing: %j', (text) => {
    expect(humanOf(text)).toBe(text)
  })

  it('may be a summary without an end', () => {
    expect(humanOf('[CONTEXT COMPACTION — REFERENCE ONLY] What was done so far.')).toBe('')
  })

  it.each(LOOPS)('may be a notice of another Governor: %j', (loop) => {
    const refused = blockText('a', 8)
    for (const notice of [
      loopNotice(loop, loop.tools, undefined),
      loopNotice(loop, loop.tools, 5),
      `${refused}\n\n${refused}`,
    ])
      for (const text of [notice, ...BUDGET_NOTICES.map((budget) => `${notice}\n\n${budget}`)]) {
        expect(humanOf(text)).toBe('')
        expect(humanOf(`${text} What does it mean?`)).toBe('What does it mean?')
      }
  })

  it.each(of('human'))('does not hide what a human said after %j', (wrapper) => {
    const text = `${wrapper}\nStop that.\n</system-reminder>`
    expect(humanOf(text)).toBe(text)
  })
})

describe('a human message', () => {
  it('is what follows a reminder, in the same text or in another part', () => {
    const reminder = '<system-reminder>\nToday is Monday.\n</system-reminder>'
    expect(humanOf(`${reminder}\n\nFix the bug.`)).toBe('Fix the bug.')
    expect(humanOf(`${reminder}${reminder} Fix the bug.`)).toBe('Fix the bug.')
    expect(humanOf(reminder, 'Fix the bug.', reminder)).toBe('Fix the bug.')
    expect(humanOf(reminder, reminder)).toBe('')
    expect(humanOf('Fix the bug.', 'And that one.')).toBe('Fix the bug.\nAnd that one.')
  })

  it.each([
    '<system-reminders>are fine</system-reminders>',
    '<skills>',
    'continue',
    'Please continue working.',
    'System: please help',
    '[System: hello]',
    '# AGENTS.md',
  ])('may be %j, which only resembles harness text', (text) => {
    expect(humanOf(text)).toBe(text)
  })

  it('without words is empty', () => {
    expect(humanOf()).toBe('')
    expect(humanOf('', ' \n')).toBe('')
  })
})

describe('a request for the last answer', () => {
  it.each(SUMMARY_REQUESTS)('is recognized as a whole message with collapsed white space: %s', (template) => {
    const text = template.replaceAll('{}', 'agent.max_steps')
    expect(isSummaryRequest([text], registry)).toBe(true)
    expect(isSummaryRequest([folded(text)], registry)).toBe(true)
    expect(isSummaryRequest([`<system-reminder>x</system-reminder>\n${text}`], registry)).toBe(true)
  })

  it.each(SUMMARY_REQUESTS)('is not a message that quotes, extends or shortens it: %s', (template) => {
    const text = template.replaceAll('{}', 'max_steps')
    const others = [`> ${text}`, `"${text}"`, `${text} Thanks.`, `Well: ${text}`, text.slice(0, -1), text.slice(1)]
    // Some texts are the beginning of others.
    const real = others.filter(
      (other) => !SUMMARY_REQUESTS.some((known) => known.replaceAll('{}', 'max_steps') === other),
    )
    for (const other of real) expect([other, isSummaryRequest([other], registry)]).toEqual([other, false])
    expect(isSummaryRequest([text, 'more'], registry)).toBe(false)
    expect(isSummaryRequest([], registry)).toBe(false)
  })

  it('allows exactly one word in each gap', () => {
    const filledWith = (word: string) =>
      SUMMARY_REQUESTS.filter((text) => text.includes('{}')).map((text) =>
        isSummaryRequest([text.replaceAll('{}', word)], registry),
      )
    expect(new Set(filledWith('max_steps'))).toEqual(new Set([true]))
    expect(new Set(filledWith('two words'))).toEqual(new Set([false]))
    expect(new Set(filledWith(''))).toEqual(new Set([false]))
  })
})

describe('a configured registry', () => {
  const own = buildRegistry(
    [
      { match: 'tag', text: 'my-note' },
      { match: 'prefix', text: 'NOTE  FROM THE HARNESS:' },
      { match: 'prefix', text: '((note', end: '))' },
      { match: 'exact', text: 'go on' },
    ],
    ['Your {} is used up. Sum up.'],
  )

  it.each([
    '<my-note>x</my-note>',
    'NOTE FROM THE HARNESS: hurry',
    '((note: hurry))',
    'go  on',
    'Your budget is used up. Sum up.',
  ])('recognizes %j', (text) => {
    expect(humanText([text], own)).toBe('')
  })

  it('recognizes a text up to its configured end', () => {
    expect(humanText(['((note: hurry)) Wait.'], own)).toBe('Wait.')
    expect(humanText(['((note: hurry'], own)).toBe('((note: hurry')
  })

  it('recognizes only the texts that it was built with', () => {
    for (const text of [...WRITTEN, 'go on, please', 'I got a NOTE FROM THE HARNESS:']) {
      expect(humanText([text], own)).toBe(text)
    }
    expect(isSummaryRequest(['Your budget is used up. Sum up.'], own)).toBe(true)
    expect(isSummaryRequest(['Your budget is used up. Sum up.'], registry)).toBe(false)
  })

  it('may be empty', () => {
    const none = buildRegistry([], [])
    expect(humanText(['<system-reminder>x</system-reminder>'], none)).toBe('<system-reminder>x</system-reminder>')
    expect(isSummaryRequest([''], none)).toBe(false)
  })
})
