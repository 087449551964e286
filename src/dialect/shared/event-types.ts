/**
 * Finds events of a stream by their own members, without decoding them. An event may hold any JSON of a client, of a
 * model or of a provider's filter (a tool's parameter `error`, a call's argument), so that no other members count.
 */
import { MemberWalk, type Span, skipSpace } from '../../json/scan.ts'

/** So many lines of a piece may be no JSON until no more of it are read: each of them costs as much as a long event. */
const MAX_BROKEN = 32

/** Reads an object's own members from `key` on, or what has come of them. `isLast`: its end is that of the line. */
function ownMembers(line: Buffer, key: number | undefined) {
  const own = { type: '', hasError: false, isLast: false }
  try {
    const field = new MemberWalk(line, skipSpace(line, DATA.length), undefined, key)
    while (field.next()) {
      const { value } = field
      if (field.is('error')) own.hasError = /^(?:\{|"[^"])/.test(line.toString('latin1', value, value + 2))
      if (field.is('type')) own.type = line.toString('latin1', value + 1, field.skip() - 1)
    }
    own.isLast = skipSpace(line, field.end) === line.length
  } catch {
    // The rest has not come, or it is no JSON.
  }
  return own
}

const DATA = 'data:'

/**
 * Returns a function that finds the last line of a piece of a stream, in Latin-1, that names an event of these types or
 * has its data; `mayFail`: or has an error. Of a line that began before the piece it reads what follows its last type.
 */
export function eventOf(types: string, mayFail = false): (piece: string) => Span | undefined {
  const named = new RegExp(String.raw`^event:\s{0,4}(?:${types})[ \t]{0,4}$`)
  const quoted = new RegExp(`"(?:${types})"`)
  const typed = new RegExp(String.raw`"type"\s{0,4}:\s{0,4}"(?:${types})"`, 'g')
  const type = new RegExp(`^(?:${types})$`)
  return (piece) => {
    let last: Span | undefined
    let broken = 0
    const isOne = (line: string, start: number, isOver: boolean): boolean => {
      if (!quoted.test(line)) return isOver && named.test(line)
      const isBegun = !line.startsWith(DATA)
      // Only the first line can have begun before the piece; what else is no data belongs to no event.
      if (isBegun && start > 0) return false
      const bytes = Buffer.from(line, 'latin1')
      const own = ownMembers(bytes, isBegun ? ([...line.matchAll(typed)].at(-1)?.index ?? -1) : undefined)
      if (!own.isLast) broken++
      return (type.test(own.type) || (mayFail && own.hasError)) && (!isBegun || (own.isLast && isOver))
    }
    for (const { 0: line, index: start } of piece.matchAll(/.+/g)) {
      const end = start + line.length
      if (isOne(line, start, end < piece.length)) last = { start, end }
      if (broken > MAX_BROKEN) break
    }
    return last
  }
}

const lastError = eventOf('error', true)

/** True if a piece of a stream, in Latin-1, reports an error. */
export function hasError(piece: string): boolean {
  return piece.includes('error') && lastError(piece) !== undefined
}
