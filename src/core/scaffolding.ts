/**
 * Tells what a human said from what an agent's harness wrote in the human's name.
 *
 * Harnesses put reminders, nudges, environment reports and summaries into messages of role `user`. Each would
 * look like a new human message, start a new run and so hand a runaway agent a fresh budget.
 */

/**
 * White space is folded before comparing.
 * `tag`: everything from `<text>` to `</text>` at the start of what is left of a text part.
 * `prefix`: a whole part that begins so. `exact`: a whole part.
 * `human`: a part that begins so is a person's, whatever else it looks like.
 */
export interface Scaffold {
  readonly source: string
  readonly match: 'tag' | 'prefix' | 'exact' | 'human'
  readonly text: string
}

export interface ScaffoldRegistry {
  readonly tags: readonly string[]
  readonly prefixes: readonly string[]
  readonly exact: ReadonlySet<string>
  readonly human: readonly string[]
  /** Whole texts, split where one word may stand. */
  readonly summaryRequests: readonly (readonly string[])[]
  /** How much of a part must be looked at to compare every prefix. */
  readonly headLength: number
}

/** White space that is only folded away may be this many times as long as the text itself. */
const SLACK = 4

function fold(text: string): string {
  return text.trim().replace(/\s+/g, ' ')
}

/** Builds the registry once per configuration. In a summary request, `{}` stands for one word. */
export function buildRegistry(
  scaffolds: readonly Pick<Scaffold, 'match' | 'text'>[],
  summaryRequests: readonly string[],
): ScaffoldRegistry {
  const texts = (match: Scaffold['match']) =>
    scaffolds.filter((entry) => entry.match === match).map(({ text }) => fold(text))
  const prefixes = texts('prefix')
  const human = texts('human')
  return {
    tags: texts('tag'),
    prefixes,
    exact: new Set(texts('exact')),
    human,
    summaryRequests: summaryRequests.map((text) => fold(text).split('{}')),
    headLength: Math.max(0, ...[...prefixes, ...human].map((prefix) => prefix.length)) * SLACK,
  }
}

/** Takes one leading `<tag …>…</tag>` off; `undefined` when the text starts with no known tag. */
function withoutLeadingTag(text: string, tags: readonly string[]): string | undefined {
  if (!text.startsWith('<')) return undefined
  for (const tag of tags) {
    if (!text.startsWith(tag, 1) || !/^[\s>]/.test(text.charAt(tag.length + 1))) continue
    const close = `</${tag}>`
    const end = text.indexOf(close)
    return end === -1 ? '' : text.slice(end + close.length).trim()
  }
  return undefined
}

function withoutTags(text: string, registry: ScaffoldRegistry): string {
  let rest = text.trim()
  for (;;) {
    const next = withoutLeadingTag(rest, registry.tags)
    if (next === undefined) return rest
    rest = next
  }
}

function startsWithAny(text: string, prefixes: readonly string[], registry: ScaffoldRegistry): boolean {
  const head = fold(text.slice(0, registry.headLength))
  return prefixes.some((prefix) => head.startsWith(prefix))
}

/** What is left of one text part when the harness's own words are taken away. */
function humanPart(text: string, registry: ScaffoldRegistry): string {
  if (startsWithAny(text, registry.human, registry)) return text
  const rest = withoutTags(text, registry)
  if (rest === '' || startsWithAny(rest, registry.prefixes, registry)) return ''
  const folded = fold(rest)
  return registry.exact.has(folded) || matchesSummaryRequest(folded, registry) ? '' : rest
}

/** What the human said in a message's text parts; empty when the harness wrote all of it. */
export function humanText(texts: readonly string[], registry: ScaffoldRegistry): string {
  return texts
    .map((text) => humanPart(text, registry))
    .filter((text) => text !== '')
    .join('\n')
}

function matchesSummaryRequest(folded: string, registry: ScaffoldRegistry): boolean {
  return registry.summaryRequests.some((pieces) => matchesPieces(folded, pieces))
}

/** Does the text consist of the pieces, in order, with exactly one word in each gap? */
function matchesPieces(text: string, pieces: readonly string[]): boolean {
  const [head = '', ...others] = pieces
  if (!text.startsWith(head)) return false
  let at = head.length
  for (const piece of others) {
    const word = /^[^\s()]{1,80}/.exec(text.slice(at, at + 80))?.[0]
    if (word === undefined || !text.startsWith(piece, at + word.length)) return false
    at += word.length + piece.length
  }
  return at === text.length
}

/** Is the whole message the known request for a last answer that a harness makes at its own limit? */
export function isSummaryRequest(texts: readonly string[], registry: ScaffoldRegistry): boolean {
  const [only, ...more] = texts
  if (only === undefined || more.length > 0) return false
  return matchesSummaryRequest(fold(withoutTags(only, registry)), registry)
}
