/** What a request demands other than plain text, in any dialect: an output format, or a call of a forced tool. */
import { MAX_LENGTH } from '../../core/foreign-json.ts'
import { type Hash, hashOfBytes } from '../../core/hash.ts'
import { isObject, textOf } from '../../core/json-object.ts'
import { kindAt, member, members, type Span } from '../../json/scan.ts'
import type { ForcedTools, IndexedList } from '../dialect.ts'
import { fieldOf, stringAt } from './request-list.ts'
import { namesIn, offeredNames, toolLists } from './tools.ts'

/** Where the APIs hold the format: Chat Completions, Responses, Messages, and an older form of Messages. */
const PLACES: readonly (readonly [outer: string, inner?: string])[] = [
  ['response_format'],
  ['text', 'format'],
  ['output_config', 'format'],
  ['output_format'],
]

const isLong = ({ start, end }: Span): boolean => end - start > MAX_LENGTH

/**
 * Returns where the output format stands that the request demands; `undefined` if it asks for plain text. An object
 * that is longer than any name of a format holds a schema, and is not read.
 */
export function formatIn({ json, fields }: IndexedList): Span | undefined {
  for (const [outer, inner] of PLACES) {
    const object = member(fields, outer)?.value
    if (!object || kindAt(json, object) !== 'object') continue
    if (isLong(object)) return object
    const format = inner === undefined ? object : member(members(json, object), inner)?.value
    if (!format || kindAt(json, format) !== 'object') continue
    if (stringAt(json, member(members(json, format), 'type')?.value.start) !== 'text') return format
  }
  return undefined
}

/** What a tool choice forces; without `names` the model must call any of the offered tools. */
type Forced = Pick<ForcedTools, 'isNamed'> & Partial<ForcedTools>

const ANY_TOOL: Forced = { isNamed: false }

/** Returns what a tool choice forces; `undefined` if the model may answer without a call. */
function forcedBy(choice: unknown): Forced | undefined {
  if (choice === 'required' || choice === 'any') return ANY_TOOL
  if (!isObject(choice)) return undefined
  const type = textOf(choice['type'])
  if (type === 'auto' || type === 'none') return undefined
  if (type === 'any' || type === 'required') return ANY_TOOL
  if (type !== 'allowed_tools') return { isNamed: true, names: namesIn(choice) }
  const allowed = isObject(choice['allowed_tools']) ? choice['allowed_tools'] : choice
  return allowed['mode'] === 'required' ? { isNamed: false, names: namesIn(allowed) } : undefined
}

function forcedIn(list: IndexedList): Forced | undefined {
  return forcedBy(fieldOf(list, 'tool_choice') ?? fieldOf(list, 'function_call'))
}

const NO_DEMANDS: readonly Hash[] = []

/** Returns hashes of the output format and of the forced tool; an empty list if the request demands neither. */
export function demandsIn(list: IndexedList): readonly Hash[] {
  const { json, fields, work } = list
  const format = formatIn(list)
  const choice = (member(fields, 'tool_choice') ?? member(fields, 'function_call'))?.value
  if (!format && !choice) return NO_DEMANDS
  const forced = choice && forcedIn(list)
  // If any tool will do, the lists of tools are what is demanded.
  const tools = forced === ANY_TOOL ? toolLists(list) : forced && choice ? [choice] : []
  return [format, ...tools].flatMap((span) => {
    if (!span) return []
    work.hash(span.end - span.start)
    return [hashOfBytes(json.subarray(span.start, span.end))]
  })
}

/** Returns the tools of which the model must call one. */
export function forcedTools(list: IndexedList): ForcedTools {
  const { isNamed, names } = forcedIn(list) ?? { isNamed: false, names: [] }
  return { isNamed, names: names ?? offeredNames(list) }
}
