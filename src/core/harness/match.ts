/**
 * Separates the words of a human from the text that an agent's harness writes in messages of role `user`: reminders,
 * nudges, environment reports and summaries. Each would look like a new human message, start a new run, and so give a
 * runaway agent a fresh budget.
 */

/**
 * A text that a harness writes; white space is folded before comparing.
 * `tag`: everything from `<text>` to `</text>` at the start of the rest of a text part; with `name>words`, only if the
 * element begins with these words. Without a closing tag it is a human's.
 * `prefix`: a whole part that begins so; with an `end`, only up to that. `exact`: a whole part.
 * `human`: a part that begins so is a human's, whatever else it looks like.
 */
export interface HarnessText {
  /** The harness that writes it, for readers of the table. */
  readonly source: string
  readonly match: 'tag' | 'prefix' | 'exact' | 'human'
  readonly text: string
  /** Where a prefix's text ends, letter by letter: the words after it are a human's. If it is missing, all words are. */
  readonly end?: string | undefined
}

/** Patterns by their first two characters. */
type Patterns = ReadonlyMap<number, readonly Pattern[]>

/** The pieces of a text with its white space folded; any one word may stand between two pieces. */
type Pattern = readonly string[]

/** The harness texts, prepared for matching by `buildRegistry`. */
export interface HarnessRegistry {
  /** Texts that are removed from the start of a part: how each begins, and how it ends. */
  readonly ended: Patterns
  readonly prefixes: Patterns
  /** Whole texts: exact ones, and requests for a summary. */
  readonly whole: Patterns
  readonly human: Patterns
  readonly summaryRequests: Patterns
}

/** The key of patterns that may begin with any character. */
const ANY = -1

const NO_PATTERNS: readonly Pattern[] = []

const SPACE = 0x20

/** True for the white space that `trim` removes. */
function isSpace(code: number): boolean {
  if (code < 0x80) return code === SPACE || (code >= 0x09 && code <= 0x0d)
  return /\s/.test(String.fromCharCode(code))
}

function fold(text: string): string {
  return text.trim().replace(/\s+/g, ' ')
}

/** The two characters at an offset as one number. */
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

/** The few patterns that may match at an offset. */
function candidates(patterns: Patterns, text: string, at: number): readonly Pattern[] {
  return patterns.get(startAt(text, at)) ?? patterns.get(ANY) ?? NO_PATTERNS
}

/** The beginnings of a harness text that is removed from the start of a part, each with its end. */
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

/** Prepares harness texts for matching, once per configuration. In a summary request, `{}` stands for one word. */
export function buildRegistry(
  harnessTexts: readonly Omit<HarnessText, 'source'>[],
  summaryRequests: readonly string[],
): HarnessRegistry {
  const texts = (match: HarnessText['match']) =>
    harnessTexts.filter((row) => row.match === match && row.end === undefined).map(({ text }) => [fold(text)])
  const summaries = summaryRequests.map((text) => fold(text).split('{}'))
  return {
    ended: patternsOf(harnessTexts.flatMap(endedBy)),
    prefixes: patternsOf(texts('prefix')),
    whole: patternsOf([...texts('exact'), ...summaries]),
    human: patternsOf(texts('human')),
    summaryRequests: patternsOf(summaries),
  }
}

/** Returns the text without the harness text at its start; `undefined` if it starts with none. */
function withoutLeading(text: string, ended: Patterns): string | undefined {
  for (const [start = '', close = ''] of candidates(ended, text, 0)) {
    const from = endOf(start, text, 0)
    const end = from === -1 ? -1 : text.indexOf(close, from)
    if (end !== -1) return text.slice(end + close.length).trim()
  }
  return undefined
}

/** The most texts that are removed from the start of a part: more than any harness writes there. */
const MAX_ENDED = 256

function withoutEnded(text: string, { ended }: HarnessRegistry): string {
  let rest = text.trim()
  for (let removed = 0; removed < MAX_ENDED; removed++) {
    const next = withoutLeading(rest, ended)
    if (next === undefined) return rest
    rest = next
  }
  return rest
}

/** Returns the offset where the folded text ends that stands `at` an offset; -1 if another text stands there. */
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

/** Returns the offset where the word ends that stands `at` an offset: at white space, a parenthesis, or after `MAX_WORD`. */
function endOfWord(text: string, at: number): number {
  const last = Math.min(text.length, at + MAX_WORD)
  let end = at
  while (end < last && !isSpace(text.charCodeAt(end)) && !'()'.includes(text.charAt(end))) end++
  return end
}

/** The most characters of a word in a gap. */
const MAX_WORD = 80

function startsWithAny(text: string, at: number, patterns: Patterns): boolean {
  for (const [prefix = ''] of candidates(patterns, text, at)) if (endOf(prefix, text, at) !== -1) return true
  return false
}

/** True if the trimmed text consists of the pieces in order, with exactly one word in each gap. */
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

/** Returns one text part without the words of the harness. */
function humanPart(text: string, registry: HarnessRegistry): string {
  if (startsWithAny(text, startOf(text), registry.human)) return text
  const rest = withoutEnded(text, registry)
  if (rest === '' || startsWithAny(rest, 0, registry.prefixes)) return ''
  return fitsAny(rest, registry.whole) ? '' : rest
}

/** Returns the human's words in a message's text parts; empty if the harness wrote all of it. */
export function humanText(texts: readonly string[], registry: HarnessRegistry): string {
  let words = ''
  for (const text of texts) {
    const part = humanPart(text, registry)
    if (part !== '') words = words === '' ? part : `${words}\n${part}`
  }
  return words
}

/** True if the whole message is a known text by which a harness at its own limit asks for the last answer. */
export function isSummaryRequest(texts: readonly string[], registry: HarnessRegistry): boolean {
  const [only] = texts
  if (only === undefined || texts.length > 1) return false
  return fitsAny(withoutEnded(only, registry), registry.summaryRequests)
}
