/**
 * Separates the words of a human from the text that an agent's harness writes in messages of role `user`: reminders,
 * nudges, environment reports and summaries. Each would look like a new human message, start a new run, and so give a
 * runaway agent a fresh budget.
 */

/**
 * A text that a harness writes; white space is folded before comparing, and `{}` is one word.
 * `tag`: everything from `<text>` to `</text>` at the start of the rest of a text part; with `name>words`, only if the
 * element begins with these words. Without a closing tag it is a human's.
 * `prefix`: a whole part that begins so; with an `end`, only up to that. `exact`: a whole part.
 * `human`: a part that begins so is a human's, whatever else it looks like. `aside`: a part that begins so, at the end
 * of a request, asks for something beside the run.
 */
export interface HarnessText {
  readonly match: 'tag' | 'prefix' | 'exact' | 'human' | 'aside'
  readonly text: string
  /** Where a prefix's text ends, letter by letter: words after it are a human's; all are, if it is missing. */
  readonly end?: string | undefined
  /** It stands for a history that it replaces, or asks for a summary of one. */
  readonly ofHistory?: boolean | undefined
}

/** A word of at most 80 characters, which `{}` stands for. */
const WORD = '[^\\s()]{1,80}'

const escaped = (text: string) => text.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')

const folded = (text: string) => text.trim().split(/\s+/).map(escaped).join('\\s+').replaceAll('\\{\\}', WORD)

/** Returns an expression that matches one of the sources at the start of a text; without sources it matches none. */
const anchored = (sources: readonly string[], end = '') =>
  new RegExp(sources.length === 0 ? '(?!)' : `^(?:${sources.join('|')})${end}`)

/** The harness texts, prepared for matching. */
export type HarnessRegistry = Readonly<ReturnType<typeof buildRegistry>>

/** Prepares harness texts, once per configuration: one expression per kind. */
export function buildRegistry(harnessTexts: readonly HarnessText[], summaryRequests: readonly string[]) {
  const sources: Record<Exclude<HarnessText['match'], 'tag'>, string[]> = {
    prefix: [],
    exact: [],
    human: [],
    aside: [],
  }
  const ended: string[] = []
  const ofSummary: string[] = []
  for (const { match, text, end, ofHistory } of harnessTexts) {
    const source = folded(text)
    if (ofHistory) ofSummary.push(match === 'tag' ? `<${source}(?:>|\\s)` : source)
    if (match === 'tag') {
      const name = escaped(text.trim().replace(/>[\s\S]*/, ''))
      ended.push(`<${source}(?:>|\\s)[\\s\\S]*?</${name}>`)
    } else if (end === undefined) sources[match].push(source)
    else ended.push(`${source}[\\s\\S]*?${escaped(end)}`)
  }
  const summaries = summaryRequests.map(folded)
  return {
    /** Texts that are removed from the start of a part, up to their ends. */
    ended: anchored(ended),
    prefixes: anchored([...sources.prefix, ...sources.aside]),
    /** Whole texts: exact ones, and requests for a summary. */
    whole: anchored([...sources.exact, ...summaries], '$'),
    human: anchored(sources.human),
    asides: anchored(sources.aside),
    /** How a summary of a history begins. */
    ofSummary: anchored(ofSummary),
    summaryRequests: anchored(summaries, '$'),
  }
}

/** The most texts that are removed from the start of a part: more than any harness writes there. */
const MAX_ENDED = 256

/** Returns what is left of a text without those at its start that have an end, or from the first one that is `kept`. */
function withoutEnded(text: string, { ended }: HarnessRegistry, kept?: RegExp): string {
  let rest = text.trim()
  for (let removed = 0; removed < MAX_ENDED && !kept?.test(rest); removed++) {
    const [found] = ended.exec(rest) ?? []
    if (found === undefined) break
    rest = rest.slice(found.length).trim()
  }
  return rest
}

/** Returns the human's words in a message's text parts; empty if the harness wrote all of it. */
export function humanText(texts: readonly string[], registry: HarnessRegistry): string {
  const words: string[] = []
  for (const text of texts) {
    const isHuman = registry.human.test(text.trimStart())
    const rest = isHuman ? text : withoutEnded(text, registry)
    const isWritten = !isHuman && (registry.prefixes.test(rest) || registry.whole.test(rest))
    if (rest !== '' && !isWritten) words.push(rest)
  }
  return words.join('\n')
}

/** Returns how many text parts of a message begin with a summary of a history, also after a harness's other texts. */
export function countSummaries(texts: readonly string[], registry: HarnessRegistry): number {
  const { ofSummary } = registry
  return texts.filter((text) => ofSummary.test(withoutEnded(text, registry, ofSummary))).length
}

/** True if the whole message is a known text by which a harness at its own limit asks for the last answer. */
export function isSummaryRequest(texts: readonly string[], registry: HarnessRegistry): boolean {
  const [only] = texts
  return only !== undefined && texts.length === 1 && registry.summaryRequests.test(withoutEnded(only, registry))
}
