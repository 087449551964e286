/** Removes what an error quotes of its request: only the rest are the provider's own words. */
import { type Overflow, statedNumbers } from './meaning.ts'
import { type Reply, replyOf } from './unwrap.ts'

/** A request's body: a string or a buffer. It is only searched for words of plain ASCII. */
export interface QuotedRequest {
  includes(words: string): boolean
}

/** Where a quotation may begin or end: quotes, brackets, what JSON or Python would escape, the ends of sentences. */
const BOUNDARY = /(["`\\{}[\]<>\r\n\t]|[^\x20-\x7e]|(?<!\w)'|'(?!\w)|[.:;!?](?= |$))/

/** The most passages that are searched in the request, which may be large. */
const MAX_SEARCHES = 6
/** Fewer words occur in many texts by chance. */
const FEWEST_WORDS = 3

/** Returns the text of an error without the passages that also stand in the request's body. */
function withoutPassages(text: string, request: QuotedRequest): string {
  let searches = 0
  let rest = ''
  for (const passage of text.split(BOUNDARY)) {
    const words = passage.split(' ').filter((word) => word !== '')
    // The words around the first number.
    const first = words.findIndex((word) => /\d/.test(word))
    const around = words.slice(Math.max(0, first - 3), Math.max(0, first) + 4)
    const isSearched = around.length >= FEWEST_WORDS && searches++ < MAX_SEARCHES
    if (!isSearched || !request.includes(around.join(' '))) rest += passage
  }
  return rest
}

/**
 * Returns an error without what it quotes of the request's body; `undefined` if the whole error counts: it quotes
 * nothing, or nothing else (an agent wrote down the same error before), or a number of `overflow` is in no quote.
 */
export function withoutQuotes(reply: Reply, overflow: Overflow, request: QuotedRequest): Reply | undefined {
  const original = withoutPassages(reply.original, request)
  if (original === reply.original) return undefined
  if ((original.match(/[a-z]{3,}/gi) ?? []).length < FEWEST_WORDS) return undefined
  const unquoted = replyOf({ ...reply, original })
  const numbers = new Set(unquoted.text.match(/\d+/g))
  const keepsNumber = Object.values(statedNumbers(overflow)).some((number) => numbers.has(String(number)))
  return keepsNumber ? undefined : unquoted
}
