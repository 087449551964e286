/** The tools that a request offers, in any dialect: in a list of the request's own object, or of items in its input. */
import { isObject, propertyOf, textOf } from '../../core/json-object.ts'
import { type Edit, removeItems } from '../../json/edit.ts'
import { decode, elements, kindAt, member, members, type Span } from '../../json/scan.ts'
import type { IndexedList } from '../dialect.ts'
import { fieldOf } from './request-list.ts'

/** How deep a tool choice may nest the names of tools. */
const MAX_DEPTH = 4

/** Returns every name in a tool choice: providers refuse a request that names a tool which it does not offer. */
export function namesIn(choice: unknown, depth = 0): string[] {
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

/** Returns the names of the offered tools. */
export function offeredNames(list: IndexedList): readonly string[] {
  return toolLists(list).flatMap((tools) => namesOf(toolsIn(list.json, tools)))
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
export function dropTools(
  request: IndexedList,
  drop: (name: string) => boolean,
  instead: readonly Edit[],
): readonly Edit[] {
  const lists = toolLists(request).map((list) => toolsIn(request.json, list))
  const forced = new Set(['tool_choice', 'function_call'].flatMap((name) => namesIn(fieldOf(request, name))))
  const isUnwanted = (name: string) => !forced.has(name) && drop(name)
  const isEmptied = lists.flat().every((tool) => isDropped(tool, isUnwanted))
  const edits = lists.flatMap((tools) => editsFor(tools, isUnwanted))
  return edits.length > 0 && isEmptied ? instead : edits
}
