/** What a refusal quotes of the request that it refuses: only what stands beside that is the provider's own word. */
import { type Overflow, statedNumbers } from '../core/overflow.ts'
import { type Reply, replyOf } from './unwrap.ts'

/** Where a quotation may begin or end: quotes, brackets, what JSON or Python would escape, and the ends of sentences. */
const BOUNDARY = /(["`\\{}[\]<>\r\n\t]|[^\x20-\x7e]|(?<!\w)'|'(?!\w)|[.:;!?](?= |$))/

/** So many passages are looked for in the request, which may be large. */
const MAX_LOOKED_FOR = 6
/** Fewer words are in many texts, and say nothing of their own. */
const FEWEST_WORDS = 3

/** The words of a passage that it is recognised by, those around its first number; `undefined` where there are too few. */
function telltale(passage: string): string | undefined {
  const words = passage.split(' ').filter((word) => word !== '')
  const at = words.findIndex((word) => /\d/.test(word))
  const around = words.slice(Math.max(0, at - 3), Math.max(0, at) + 4)
  return around.length < FEWEST_WORDS ? undefined : around.join(' ')
}

/** The text of a refusal without the passages that stand in the request's body as well. */
function withoutPassages(text: string, request: Buffer): string {
  let lookedFor = 0
  const isQuoted = (passage: string): boolean => {
    const words = lookedFor < MAX_LOOKED_FOR ? telltale(passage) : undefined
    if (words !== undefined) lookedFor++
    return words !== undefined && request.includes(words, 0, 'latin1')
  }
  const passages = text.split(BOUNDARY)
  return passages.map((passage) => (isQuoted(passage) ? '' : passage)).join('')
}

/**
 * Returns what a refusal says apart from what it quotes of the request's body; `undefined` where it has to be taken as a
 * whole: it quotes nothing; it says nothing else, as an error that an agent has written down before; or a number that was
 * read from it (`found`) is its own.
 */
export function withoutQuotes(reply: Reply, found: Overflow, request: Buffer): Reply | undefined {
  const original = withoutPassages(reply.original, request)
  if (original === reply.original) return undefined
  if ((original.match(/[a-z]{3,}/gi) ?? []).length < FEWEST_WORDS) return undefined
  const own = replyOf({ ...reply, original })
  const numbers = new Set(own.text.match(/\d+/g))
  const isOwn = Object.values(statedNumbers(found)).some((number) => numbers.has(String(number)))
  return isOwn ? undefined : own
}
