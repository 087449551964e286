/** What a request wants besides an answer in plain text, in whatever dialect: a format, or a call of a forced tool. */
import { MAX_LENGTH } from '../../core/foreign-json.ts'
import { type Hash, hashOfBytes } from '../../core/hash.ts'
import { kindAt, member, members, type Span } from '../../json/scan.ts'
import type { IndexedList } from '../dialect.ts'
import { isObject, textOf } from './json-object.ts'
import { fieldOf, stringAt } from './request-list.ts'
import { namesIn, offeredNames, offeredTools } from './tools.ts'

/** Where the APIs have it: Chat Completions, Responses, Messages and what Messages had before. */
const PLACES: readonly (readonly [outer: string, inner?: string])[] = [
  ['response_format'],
  ['text', 'format'],
  ['output_config', 'format'],
  ['output_format'],
]

const isLong = ({ start, end }: Span): boolean => end - start > MAX_LENGTH

/**
 * Where the format stands that the answer must have; `undefined` where the request leaves it at plain text. What is longer
 * than the name of a format holds a schema, and is not looked into.
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

/** `named`: one tool and no other; else one of the `names`, or, where there are none, of those that are offered. */
interface Forced {
  readonly isNamed: boolean
  readonly names?: readonly string[]
}

const ANY_TOOL: Forced = { isNamed: false }

/** What a tool choice forces; `undefined` where the model is free. */
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

/** What stands for the format and the forced tool of a request: the same for equal ones. */
export function demandsIn(list: IndexedList): readonly Hash[] {
  const { json, fields, work } = list
  const format = formatIn(list)
  const choice = (member(fields, 'tool_choice') ?? member(fields, 'function_call'))?.value
  if (!format && !choice) return NO_DEMANDS
  const forced = choice && forcedIn(list)
  // Where any tool will do, the tools tell which are meant.
  const tool = forced === ANY_TOOL ? offeredTools(list) : forced && choice
  return [format, tool].flatMap((span) => {
    if (!span) return []
    work.hash(span.end - span.start)
    return [hashOfBytes(json.subarray(span.start, span.end))]
  })
}

/** The tools of which a request forces the model to call one; none where it leaves it free. `isNamed`: it names that one. */
export function forcedTools(list: IndexedList): {
  readonly names: readonly string[]
  readonly isNamed: boolean
} {
  const { isNamed, names } = forcedIn(list) ?? { isNamed: false, names: [] }
  return { isNamed, names: names ?? offeredNames(list) }
}
