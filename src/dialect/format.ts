/** The format that a request wants the answer in, in whatever dialect. */
import { kindAt, member, members, type Span } from '../json/scan.ts'
import type { IndexedList } from './dialect.ts'
import { stringAt } from './listed.ts'

/** Where the APIs have it: Chat Completions, Responses, Messages and what Messages had before. */
const PLACES: readonly (readonly [outer: string, inner?: string])[] = [
  ['response_format'],
  ['text', 'format'],
  ['output_config', 'format'],
  ['output_format'],
]

/** Where the format stands that the answer must have; `undefined` where the request leaves it at plain text. */
export function formatIn({ json, fields }: IndexedList): Span | undefined {
  for (const [outer, inner] of PLACES) {
    const object = member(fields, outer)?.value
    if (!object || kindAt(json, object) !== 'object') continue
    const format = inner === undefined ? object : member(members(json, object), inner)?.value
    if (!format || kindAt(json, format) !== 'object') continue
    if (stringAt(json, member(members(json, format), 'type')?.value.start) !== 'text') return format
  }
  return undefined
}
