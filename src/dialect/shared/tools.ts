/** The tools that a request offers, in any dialect: a list in the request's own object. */
import { type Edit, removeItems } from '../../json/edit.ts'
import { decode, elements, kindAt, member, type Span } from '../../json/scan.ts'
import type { IndexedList } from '../dialect.ts'
import { isObject, propertyOf, textOf } from './json-object.ts'
import { fieldOf } from './request-list.ts'

/** Returns the name of a function or custom tool, and the type of a provider's built-in tool. */
function nameOf(tool: unknown): string {
  if (!isObject(tool)) return ''
  const names = [tool['function'], tool['custom'], tool].map((value) => textOf(propertyOf(value, 'name')))
  return names.find((name) => name !== '') ?? textOf(tool['type'])
}

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

/** Returns where the list of tools stands (`functions` in the older form of Chat Completions); `undefined` if there is none. */
export function offeredTools({ json, fields }: IndexedList): Span | undefined {
  const list = (member(fields, 'tools') ?? member(fields, 'functions'))?.value
  return list && kindAt(json, list) === 'array' ? list : undefined
}

/** Returns the names of the offered tools. */
export function offeredNames(list: IndexedList): readonly string[] {
  const tools = fieldOf(list, 'tools') ?? fieldOf(list, 'functions')
  return Array.isArray(tools) ? tools.map(nameOf) : []
}

/**
 * Returns edits that remove the tools for which `drop` returns true, except those that the tool choice names. If no tool
 * would be left, it returns `instead`: providers refuse an empty list, and a history with calls of unknown tools.
 */
export function dropTools(
  request: IndexedList,
  drop: (name: string) => boolean,
  instead: readonly Edit[],
): readonly Edit[] {
  const { json } = request
  const list = offeredTools(request)
  if (!list) return []
  const forced = new Set(['tool_choice', 'function_call'].flatMap((name) => namesIn(fieldOf(request, name))))
  const tools = elements(json, list)
  const dropped = new Set<Span>(
    tools.filter((tool) => {
      const name = nameOf(decode(json, tool))
      return name !== '' && !forced.has(name) && drop(name)
    }),
  )
  if (dropped.size === 0) return []
  if (dropped.size === tools.length) return instead
  return removeItems(tools, (tool) => dropped.has(tool))
}
