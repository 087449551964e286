import { decode, member, members, root } from '../../json/scan.ts'
import type { Dialect, RequestInput } from '../dialect.ts'
import { withoutLongContext } from './beta.ts'
import { withLowerOutput } from './output-cap.ts'
import { writtenCharacters } from './usage-text.ts'

function modelOf({ body }: RequestInput): string | undefined {
  const value = member(members(body, root(body)), 'model')?.value
  const model = value && decode(body, value)
  return typeof model === 'string' ? model : undefined
}

const STREAM_FIELD = /(?<!\\)"stream"\s{0,8}:\s{0,8}true/

/** The members of `Dialect` that all APIs share whose request bodies have the fields `model` and `stream`. */
export const SHARED_MEMBERS = {
  modelOf,
  asksForStream: (_path, piece) => STREAM_FIELD.test(piece),
  withLowerOutput,
  withoutLongContext,
  writtenCharacters,
} as const satisfies Partial<Dialect>
