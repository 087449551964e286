/** What a request demands and offers besides its messages: a session id, an output format, tools, a forced tool. */
import type { Conversation } from '../../core/conversation.ts'
import { type Hash, hashOfBytes } from '../../core/hash.ts'
import { isObject, MAX_LENGTH, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { type Edit, removeItems } from '../../json/edit.ts'
import { decode, elements, kindAt, member, members, type Span } from '../../json/scan.ts'
import type { DialectRequest, ForcedTools, IndexedList } from '../dialect.ts'
import { collapseRepeats } from './repeats.ts'
import { type AddText, fieldOf, stringIn } from './request-list.ts'

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

/** The members of a request that read what it demands and offers. `addText` appends a text to the item at an index. */
export function requestMembers(
  index: IndexedList,
  conversation: Conversation,
  formats: readonly FormatPlace[],
  addText: AddText,
) {
  return {
    index,
    sessionIdAt(path) {
      let value = fieldOf(index, path[0] ?? '')
      for (let at = 1; at < path.length && value !== undefined; at++) value = propertyOf(value, path[at] ?? '')
      // An object with an id stands for its id: {"conversation": {"id": "conv_1"}}.
      const id = typeof value === 'string' ? value : propertyOf(value, 'id')
      if (typeof id !== 'string' || id.trim() === '') return undefined
      if (path.at(-1) !== 'user_id') return id.trim()
      // A user has many sessions. Only Claude Code names one there: in a JSON text, or older versions after `_session_`.
      const session = textOf(parseObject(id, index.work)?.['session_id'])
      return session === '' ? /_session_([0-9a-f-]{36})$/.exec(id)?.[1] : session
    },
    demands: () => demandsIn(index, formatIn(index, formats)),
    hasFormat: () => formatIn(index, formats) !== undefined,
    forcedTools() {
      const { isNamed, names } = forcedIn(index) ?? { isNamed: false, names: [] }
      return { isNamed, names: names ?? toolLists(index).flatMap((list) => readTools(index.json, list).names) }
    },
    dropTools(drop, instead) {
      const forced = new Set(['tool_choice', 'function_call'].flatMap((name) => namesIn(fieldOf(index, name))))
      const isUnwanted = (name: string) => !forced.has(name) && drop(name)
      const lists = toolLists(index).map((list) => readTools(index.json, list, isUnwanted))
      const edits = lists.flatMap((list) => list.edits)
      // Providers refuse an empty list, and a history with calls of unknown tools.
      return edits.length > 0 && lists.every(({ isEmptied }) => isEmptied) ? instead : edits
    },
    collapseRepeats: () => collapseRepeats(index, conversation, addText),
    parameters() {
      const stated: Record<string, number> = {}
      for (const [name, fields] of Object.entries(PARAMETERS)) {
        for (const field of fields) {
          const value = fieldOf(index, field)
          if (typeof value === 'number') stated[name] ??= value
        }
      }
      return stated
    },
  } as const satisfies Partial<DialectRequest>
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
    if (stringIn(json, members(json, format), 'type') !== 'text') return format
  }
  return undefined
}

/** What a tool choice forces; without `names` the model must call any of the offered tools. */
type Forced = Pick<ForcedTools, 'isNamed'> & Partial<ForcedTools>

/** Returns what the tool choice forces; `undefined` if the model may answer without a call. */
function forcedIn(list: IndexedList): Forced | undefined {
  const choice = fieldOf(list, 'tool_choice') ?? fieldOf(list, 'function_call')
  const type = isObject(choice) ? textOf(choice['type']) : choice
  if (type === 'required' || type === 'any') return { isNamed: false }
  if (!isObject(choice) || type === 'auto' || type === 'none') return undefined
  if (type !== 'allowed_tools') return { isNamed: true, names: namesIn(choice) }
  const allowed = isObject(choice['allowed_tools']) ? choice['allowed_tools'] : choice
  return allowed['mode'] === 'required' ? { isNamed: false, names: namesIn(allowed) } : undefined
}

/** Returns hashes of the output format and of the forced tool; an empty list if the request demands neither. */
function demandsIn(list: IndexedList, format: Span | undefined): readonly Hash[] {
  const { json, fields, work } = list
  const choice = (member(fields, 'tool_choice') ?? member(fields, 'function_call'))?.value
  const spans = format ? [format] : []
  const forced = choice && forcedIn(list)
  // If any tool will do, the lists of tools are what is demanded.
  if (forced) spans.push(...(forced.names ? [choice] : toolLists(list)))
  return spans.map(({ start, end }) => {
    work.hash(end - start)
    return hashOfBytes(json.subarray(start, end))
  })
}

/** How deep a tool choice may nest the names of tools. */
const MAX_DEPTH = 4

/** Returns every name in a tool choice: providers refuse a request that names a tool which it does not offer. */
function namesIn(choice: unknown, depth = 0): string[] {
  if (depth > MAX_DEPTH || typeof choice !== 'object' || choice === null) return []
  const names = isObject(choice) ? [textOf(choice['name']), textOf(choice['type'])] : []
  for (const value of Object.values(choice)) names.push(...namesIn(value, depth + 1))
  return names
}

/** Returns where the lists of tools stand: in a field (`functions` is Chat Completions' older form), and in items. */
export function toolLists({ json, fields, items }: IndexedList): readonly Span[] {
  const list = (member(fields, 'tools') ?? member(fields, 'functions'))?.value
  const others = items.flatMap(({ tools }) => tools ?? [])
  return list && kindAt(json, list) === 'array' ? [list, ...others] : others
}

/** A list of tools: their names, and what removing some of them takes and leaves. */
interface ToolList {
  readonly names: string[]
  readonly edits: Edit[]
  readonly isEmptied: boolean
}

/**
 * Reads a list of tools. Names and edits include those in namespaces; a namespace is removed if nothing is left in it.
 */
function readTools(json: Buffer, list: Span, isUnwanted?: (name: string) => boolean, depth = 0): ToolList {
  const tools = depth > MAX_DEPTH || kindAt(json, list) !== 'array' ? [] : elements(json, list)
  const removed = new Set<Span>()
  const names: string[] = []
  const edits: Edit[] = []
  for (const tool of tools) {
    const value = decode(json, tool)
    const type = textOf(propertyOf(value, 'type'))
    const called = textOf(propertyOf(propertyOf(value, 'function'), 'name'))
    const custom = textOf(propertyOf(propertyOf(value, 'custom'), 'name'))
    // A provider's built-in tool has only a type.
    const name = called || custom || textOf(propertyOf(value, 'name')) || type
    const nested = type === 'namespace' && member(members(json, tool), 'tools')?.value
    const inner = nested ? readTools(json, nested, isUnwanted, depth + 1) : undefined
    const isSpace = inner !== undefined && inner.names.length > 0
    names.push(...(isSpace ? inner.names : [name]))
    if ((name !== '' && isUnwanted?.(name)) || (isSpace && inner.isEmptied)) removed.add(tool)
    else if (inner) edits.push(...inner.edits)
  }
  edits.push(...removeItems(tools, removed))
  return { names, edits, isEmptied: removed.size === tools.length }
}
