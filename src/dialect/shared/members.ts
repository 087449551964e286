/** The members of dialects and their requests that are the same wherever a body is an object with fields of these names. */
import { decode, member, members, root } from '../../json/scan.ts'
import type { Dialect, DialectRequest, IndexedList, RequestInput } from '../dialect.ts'
import { withoutLongContext } from './beta.ts'
import { withLowerOutput } from './output-cap.ts'
import { demandsIn, forcedTools, formatIn } from './output-demands.ts'
import { fieldOf } from './request-list.ts'
import { sessionIdAt } from './session-id.ts'
import { dropTools } from './tools.ts'
import { writtenCharacters } from './usage-text.ts'

function modelOf({ body }: RequestInput): string | undefined {
  const value = member(members(body, root(body)), 'model')?.value
  const model = value && decode(body, value)
  return typeof model === 'string' ? model : undefined
}

const STREAM_FIELD = /(?<!\\)"stream"\s{0,8}:\s{0,8}true/

export const SHARED_MEMBERS = {
  modelOf,
  asksForStream: (_path, piece) => STREAM_FIELD.test(piece),
  withLowerOutput,
  withoutLongContext,
  writtenCharacters,
} as const satisfies Partial<Dialect>

/** Returns the members of a request that its top-level fields decide. */
export function sharedRequestMembers(list: IndexedList) {
  const field = (name: string): unknown => fieldOf(list, name)
  return {
    sessionIdAt: (path) => sessionIdAt(field, path),
    demands: () => demandsIn(list),
    hasFormat: () => formatIn(list) !== undefined,
    forcedTools: () => forcedTools(list),
    dropTools: (drop, instead) => dropTools(list, drop, instead),
  } satisfies Partial<DialectRequest>
}
