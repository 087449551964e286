/** The tools that a request offers, in whatever dialect: they stand in a list of its own object. */
import { type Edit, removeItems } from '../../json/edit.ts'
import { decode, elements, kindAt, member, type Span } from '../../json/scan.ts'
import type { IndexedList } from '../dialect.ts'
import { isObject, textOf } from './json-object.ts'
import { fieldOf } from './request-list.ts'

/** What a tool is called: functions and free-form tools by their names, a provider's own by their types. */
function nameOf(tool: unknown): string {
  if (!isObject(tool)) return ''
  const inner = [tool['function'], tool['custom'], tool].find(
    (one) => isObject(one) && textOf(one['name']) !== '',
  )
  return isObject(inner) ? textOf(inner['name']) : textOf(tool['type'])
}

/** How deep names stand in a tool choice. */
const MAX_DEPTH = 4

/** Every name in a tool choice: a request that names a tool it does not offer is refused. */
export function namesIn(choice: unknown, depth = 0): string[] {
  if (depth > MAX_DEPTH) return []
  if (Array.isArray(choice)) return choice.flatMap((one) => namesIn(one, depth + 1))
  if (!isObject(choice)) return []
  const own = [textOf(choice['name']), textOf(choice['type'])]
  return [...own, ...Object.values(choice).flatMap((one) => namesIn(one, depth + 1))]
}

/** Where the list of tools stands; `undefined` where there is none. The older form of Chat Completions has functions. */
export function offeredTools({ json, fields }: IndexedList): Span | undefined {
  const list = (member(fields, 'tools') ?? member(fields, 'functions'))?.value
  return list && kindAt(json, list) === 'array' ? list : undefined
}

export function offeredNames(list: IndexedList): readonly string[] {
  const tools = fieldOf(list, 'tools') ?? fieldOf(list, 'functions')
  return Array.isArray(tools) ? tools.map(nameOf) : []
}

/**
 * Edits that no longer offer the tools that `drop` names, but for those the client insists on; none where there is
 * nothing to drop. Where that would be all of them they stay, not to be chosen (or what is to be done `instead`): providers
 * refuse an empty list, and a history with calls of tools that are not there.
 */
export function dropTools(
  request: IndexedList,
  drop: (name: string) => boolean,
  instead: readonly Edit[],
): readonly Edit[] {
  const { json } = request
  const list = offeredTools(request)
  if (!list) return []
  const insisted = new Set(
    ['tool_choice', 'function_call'].flatMap((name) => namesIn(fieldOf(request, name))),
  )
  const tools = elements(json, list)
  const gone = new Set<Span>(
    tools.filter((tool) => {
      const name = nameOf(decode(json, tool))
      return name !== '' && !insisted.has(name) && drop(name)
    }),
  )
  if (gone.size === 0) return []
  if (gone.size === tools.length) return instead
  return removeItems(tools, (tool) => gone.has(tool))
}
