/**
 * Tells what a human said from what an agent's harness wrote in the human's name.
 *
 * Harnesses put reminders, nudges, environment reports and summaries into messages of role `user`. Each would
 * look like a new human message, start a new run and so hand a runaway agent a fresh budget.
 */

/**
 * White space is folded before comparing.
 * `tag`: everything from `<text>` to `</text>` at the start of what is left of a text part; of `name>words`, where the words
 * are the first in it. One that is never closed is a person's.
 * `prefix`: a whole part that begins so; with an `end`, only up to that. `exact`: a whole part.
 * `human`: a part that begins so is a person's, whatever else it looks like.
 */
export interface HarnessText {
  readonly source: string
  readonly match: 'tag' | 'prefix' | 'exact' | 'human'
  readonly text: string
  /** What a prefix's text ends with, letter by letter: the words after it are a person's, as all are where it is missing. */
  readonly end?: string | undefined
}

/** Texts with their white space folded, cut where one word may stand, by their first two characters. */
type Patterns = ReadonlyMap<number, readonly Pattern[]>

type Pattern = readonly string[]

export interface HarnessRegistry {
  /** What is taken off the start of a text: how it begins, and how it ends. */
  readonly ended: Patterns
  readonly prefixes: Patterns
  /** Whole texts: exact ones, and requests for a summary. */
  readonly whole: Patterns
  readonly human: Patterns
  readonly summaryRequests: Patterns
}

/** Where patterns stand that may begin with any character. */
const ANY = -1

const NO_PATTERNS: readonly Pattern[] = []

const SPACE = 0x20

/** White space as `trim` has it. */
function isSpace(code: number): boolean {
  if (code < 0x80) return code === SPACE || (code >= 0x09 && code <= 0x0d)
  return /\s/.test(String.fromCharCode(code))
}

function fold(text: string): string {
  return text.trim().replace(/\s+/g, ' ')
}

/** The first two characters of what stands `at`, as one number. */
function startAt(text: string, at: number): number {
  const second = text.charCodeAt(at + 1)
  return text.charCodeAt(at) * 0x10000 + (isSpace(second) ? SPACE : second)
}

function patternsOf(texts: readonly Pattern[]): Patterns {
  const codeOf = ([head = '']: Pattern) => (head.length < 2 ? ANY : startAt(head, 0))
  const codes = new Set([ANY, ...texts.map(codeOf)])
  const startingWith = (code: number) => texts.filter((text) => codeOf(text) === code || codeOf(text) === ANY)
  return new Map([...codes].map((code) => [code, startingWith(code)]))
}

/** The few patterns that may stand `at`. */
function candidates(patterns: Patterns, text: string, at: number): readonly Pattern[] {
  return patterns.get(startAt(text, at)) ?? patterns.get(ANY) ?? NO_PATTERNS
}

/** What is taken off the start of a text for a row: its beginnings, each with its end. */
function endedBy({ match, text, end }: Omit<HarnessText, 'source'>): readonly Pattern[] {
  const start = fold(text)
  if (match === 'tag') {
    const close = `</${start.replace(/>.*/, '')}>`
    return [
      [`<${start}>`, close],
      [`<${start} `, close],
    ]
  }
  return match === 'prefix' && end !== undefined ? [[start, end]] : []
}

/** Builds the registry once per configuration. In a summary request, `{}` stands for one word. */
export function buildRegistry(
  scaffolds: readonly Omit<HarnessText, 'source'>[],
  summaryRequests: readonly string[],
): HarnessRegistry {
  const texts = (match: HarnessText['match']) =>
    scaffolds.filter((row) => row.match === match && row.end === undefined).map(({ text }) => [fold(text)])
  const summaries = summaryRequests.map((text) => fold(text).split('{}'))
  return {
    ended: patternsOf(scaffolds.flatMap(endedBy)),
    prefixes: patternsOf(texts('prefix')),
    whole: patternsOf([...texts('exact'), ...summaries]),
    human: patternsOf(texts('human')),
    summaryRequests: patternsOf(summaries),
  }
}

/** Takes what a harness wrote off the start, up to where it ends; `undefined` when the text starts with nothing of that. */
function withoutLeading(text: string, ended: Patterns): string | undefined {
  for (const [start = '', close = ''] of candidates(ended, text, 0)) {
    const from = endOf(start, text, 0)
    const end = from === -1 ? -1 : text.indexOf(close, from)
    if (end !== -1) return text.slice(end + close.length).trim()
  }
  return undefined
}

/** More texts than any harness puts before a person's are not taken off. */
const MAX_ENDED = 256

function withoutEnded(text: string, { ended }: HarnessRegistry): string {
  let rest = text.trim()
  for (let taken = 0; taken < MAX_ENDED; taken++) {
    const next = withoutLeading(rest, ended)
    if (next === undefined) return rest
    rest = next
  }
  return rest
}

/** Where the folded text ends that stands `at`; -1 where another text stands there. */
function endOf(folded: string, text: string, at: number): number {
  let end = at
  for (let index = 0; index < folded.length; index++) {
    const code = folded.charCodeAt(index)
    if (code !== SPACE) {
      if (text.charCodeAt(end++) !== code) return -1
    } else {
      if (!isSpace(text.charCodeAt(end))) return -1
      do end++
      while (isSpace(text.charCodeAt(end)))
    }
  }
  return end
}

/** Where the word ends that stands `at`: at the first white space, parenthesis or, at most, after `MAX_WORD` characters. */
function endOfWord(text: string, at: number): number {
  const most = Math.min(text.length, at + MAX_WORD)
  let end = at
  while (end < most && !isSpace(text.charCodeAt(end)) && !'()'.includes(text.charAt(end))) end++
  return end
}

const MAX_WORD = 80

function startsWithAny(text: string, at: number, patterns: Patterns): boolean {
  for (const [prefix = ''] of candidates(patterns, text, at)) if (endOf(prefix, text, at) !== -1) return true
  return false
}

/** Does the text, without white space around it, consist of the pieces, in order, with exactly one word in each gap? */
function fits(text: string, pieces: Pattern): boolean {
  let at = 0
  for (let index = 0; index < pieces.length; index++) {
    const start = index === 0 ? 0 : endOfWord(text, at)
    if (index > 0 && start === at) return false
    at = endOf(pieces[index] ?? '', text, start)
    if (at === -1) return false
  }
  return at === text.length
}

function fitsAny(text: string, patterns: Patterns): boolean {
  for (const pattern of candidates(patterns, text, 0)) if (fits(text, pattern)) return true
  return false
}

function startOf(text: string): number {
  let at = 0
  while (at < text.length && isSpace(text.charCodeAt(at))) at++
  return at
}

/** What is left of one text part when the harness's own words are taken away. */
function humanPart(text: string, registry: HarnessRegistry): string {
  if (startsWithAny(text, startOf(text), registry.human)) return text
  const rest = withoutEnded(text, registry)
  if (rest === '' || startsWithAny(rest, 0, registry.prefixes)) return ''
  return fitsAny(rest, registry.whole) ? '' : rest
}

/** What the human said in a message's text parts; empty when the harness wrote all of it. */
export function humanText(texts: readonly string[], registry: HarnessRegistry): string {
  let said = ''
  for (const text of texts) {
    const part = humanPart(text, registry)
    if (part !== '') said = said === '' ? part : `${said}\n${part}`
  }
  return said
}

/** Is the whole message the known request for a last answer that a harness makes at its own limit? */
export function isSummaryRequest(texts: readonly string[], registry: HarnessRegistry): boolean {
  const [only] = texts
  if (only === undefined || texts.length > 1) return false
  return fitsAny(withoutEnded(only, registry), registry.summaryRequests)
}
