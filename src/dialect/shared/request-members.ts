/** What a request demands and offers besides its messages: a session id, an output format, tools, a forced tool. */

import { type Hash, hashOfBytes } from '../../core/hash.ts'
import { isObject, MAX_LENGTH, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { type Edit, removeItems } from '../../json/edit.ts'
import { decode, elements, kindAt, member, members, type Span } from '../../json/scan.ts'
import type { DialectRequest, ForcedTools, IndexedList } from '../dialect.ts'
import { fieldOf, stringAt } from './request-list.ts'

/** Where an API holds the output format: a field, or a member of the object in a field. */
export type FormatPlace = readonly [outer: string, inner?: string]

/** Fields of requests in all APIs, by the names that OpenTelemetry has for them. */
const PARAMETERS = {
  max_tokens: ['max_completion_tokens', 'max_output_tokens', 'max_tokens'],
  temperature: ['temperature'],
  top_p: ['top_p'],
  top_k: ['top_k'],
  frequency_penalty: ['frequency_penalty'],
  presence_penalty: ['presence_penalty'],
  seed: ['seed'],
  'choice.count': ['n'],
}

/** The members of a request that read what it demands and offers. */
export function requestMembers(index: IndexedList, formats: readonly FormatPlace[]) {
  return {
    index,
    sessionIdAt: (path) => sessionIdAt(index, path),
    demands: () => demandsIn(index, formatIn(index, formats)),
    hasFormat: () => formatIn(index, formats) !== undefined,
    forcedTools() {
      const { isNamed, names } = forcedIn(index) ?? { isNamed: false, names: [] }
      return {
        isNamed,
        names: names ?? toolLists(index).flatMap((list) => namesOf(toolsIn(index.json, list))),
      }
    },
    dropTools: (drop, instead) => dropTools(index, drop, instead),
    parameters() {
      const stated = Object.entries(PARAMETERS).flatMap(([name, fields]) => {
        const value = fields.map((field) => fieldOf(index, field)).find((it) => typeof it === 'number')
        return typeof value === 'number' ? [[name, value] as const] : []
      })
      return Object.fromEntries(stated)
    },
  } as const satisfies Partial<DialectRequest>
}

/** Returns the session id at a path of keys in a body; `undefined` if there is none. */
function sessionIdAt(request: IndexedList, path: readonly string[]): string | undefined {
  let value = fieldOf(request, path[0] ?? '')
  for (let at = 1; at < path.length && value !== undefined; at++) value = propertyOf(value, path[at] ?? '')
  // An object with an id stands for its id: {"conversation": {"id": "conv_1"}}.
  const id = typeof value === 'string' ? value : propertyOf(value, 'id')
  if (typeof id !== 'string' || id.trim() === '') return undefined
  if (path.at(-1) !== 'user_id') return id.trim()
  // A user has many sessions. Only Claude Code names one there: in a JSON text, or after `_session_` in older versions.
  const session = parseObject(id, request.work)?.['session_id']
  if (typeof session === 'string' && session !== '') return session
  return /_session_([0-9a-f-]{36})$/.exec(id)?.[1]
}

/**
 * Returns where the output format stands that the request demands; `undefined` if it asks for plain text. An object
 * that is longer than any name of a format holds a schema, and is not read.
 */
function formatIn({ json, fields }: IndexedList, places: readonly FormatPlace[]): Span | undefined {
  for (const [outer, inner] of places) {
    const object = member(fields, outer)?.value
    if (!object || kindAt(json, object) !== 'object') continue
    if (object.end - object.start > MAX_LENGTH) return object
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

/** Returns hashes of the output format and of the forced tool; an empty list if the request demands neither. */
function demandsIn(list: IndexedList, format: Span | undefined): readonly Hash[] {
  const { json, fields, work } = list
  const choice = (member(fields, 'tool_choice') ?? member(fields, 'function_call'))?.value
  if (!format && !choice) return []
  const forced = choice && forcedIn(list)
  // If any tool will do, the lists of tools are what is demanded.
  const tools = forced === ANY_TOOL ? toolLists(list) : forced && choice ? [choice] : []
  return [format, ...tools].flatMap((span) => {
    if (!span) return []
    work.hash(span.end - span.start)
    return [hashOfBytes(json.subarray(span.start, span.end))]
  })
}

/** How deep a tool choice may nest the names of tools. */
const MAX_DEPTH = 4

/** Returns every name in a tool choice: providers refuse a request that names a tool which it does not offer. */
function namesIn(choice: unknown, depth = 0): string[] {
  if (depth > MAX_DEPTH) return []
  if (Array.isArray(choice)) return choice.flatMap((entry) => namesIn(entry, depth + 1))
  if (!isObject(choice)) return []
  const names = [textOf(choice['name']), textOf(choice['type'])]
  return [...names, ...Object.values(choice).flatMap((value) => namesIn(value, depth + 1))]
}

/** Returns where the lists of tools stand: in a field (`functions` is Chat Completions' older form), and in items. */
export function toolLists({ json, fields, items }: IndexedList): readonly Span[] {
  const list = (member(fields, 'tools') ?? member(fields, 'functions'))?.value
  const others = items.flatMap(({ tools }) => tools ?? [])
  return list && kindAt(json, list) === 'array' ? [list, ...others] : others
}

/** An offered tool, or a namespace with the tools in it. */
interface OfferedTool extends Span {
  readonly name: string
  readonly tools: readonly OfferedTool[]
}

function toolsIn(json: Buffer, list: Span, depth = 0): readonly OfferedTool[] {
  if (depth > MAX_DEPTH || kindAt(json, list) !== 'array') return []
  return elements(json, list).map((tool) => {
    const value = decode(json, tool)
    const type = textOf(propertyOf(value, 'type'))
    const named = [propertyOf(value, 'function'), propertyOf(value, 'custom'), value]
    // A provider's built-in tool has only a type.
    const name = named.map((it) => textOf(propertyOf(it, 'name'))).find((it) => it !== '') ?? type
    const nested = type === 'namespace' && member(members(json, tool), 'tools')?.value
    return { ...tool, name, tools: nested ? toolsIn(json, nested, depth + 1) : [] }
  })
}

function namesOf(tools: readonly OfferedTool[]): string[] {
  return tools.flatMap(({ name, tools: inner }) => (inner.length > 0 ? namesOf(inner) : [name]))
}

/** Returns whether a whole tool is removed: a namespace is, if nothing in it would be left. */
function isDropped({ name, tools }: OfferedTool, drop: (name: string) => boolean): boolean {
  return (name !== '' && drop(name)) || (tools.length > 0 && tools.every((tool) => isDropped(tool, drop)))
}

function editsFor(tools: readonly OfferedTool[], drop: (name: string) => boolean): Edit[] {
  const removed = new Set(tools.filter((tool) => isDropped(tool, drop)))
  return [
    ...removeItems(tools, (tool) => removed.has(tool)),
    ...tools.flatMap((tool) => (removed.has(tool) ? [] : editsFor(tool.tools, drop))),
  ]
}

/**
 * Returns edits that remove the tools for which `drop` returns true, except those that the tool choice names. If no
 * tool would be left, it returns `instead`: providers refuse an empty list, and a history with calls of unknown tools.
 */
function dropTools(request: IndexedList, drop: (name: string) => boolean, instead: readonly Edit[]): readonly Edit[] {
  const lists = toolLists(request).map((list) => toolsIn(request.json, list))
  const forced = new Set(['tool_choice', 'function_call'].flatMap((name) => namesIn(fieldOf(request, name))))
  const isUnwanted = (name: string) => !forced.has(name) && drop(name)
  const isEmptied = lists.flat().every((tool) => isDropped(tool, isUnwanted))
  const edits = lists.flatMap((tools) => editsFor(tools, isUnwanted))
  return edits.length > 0 && isEmptied ? instead : edits
}
