/** Puts a message together from the deltas of a stream, in all the ways in which providers split one. */
import { isObject, type Json, objectsOf, propertyOf, textOf } from '../../core/json-object.ts'

/** Fields whose value comes whole. Some providers repeat them in every piece; others leave them empty later. */
const WHOLE = new Set(['id', 'type', 'role', 'index'])

function grow(target: Map<string, unknown>, piece: Json, except: readonly string[] = []): void {
  for (const [key, value] of Object.entries(piece)) {
    if (except.includes(key)) continue
    const before = target.get(key)
    const isText = typeof before === 'string' && typeof value === 'string'
    let grown = value
    if (WHOLE.has(key)) grown = before || value
    else if (value === null || value === undefined) grown = before ?? value
    // A name comes whole; some providers repeat it with every piece of the arguments.
    else if (isText && !(key === 'name' && before === value)) grown = before + value
    else if (Array.isArray(before) && Array.isArray(value)) grown = [...before, ...value]
    target.set(key, grown)
  }
}

interface AssembledCall {
  readonly call: Map<string, unknown>
  /** The object under the call's kind: name and arguments. */
  readonly called: Map<string, unknown>
  kind: 'function' | 'custom'
}

/** The part of a message that has arrived. */
export interface Assembly {
  readonly fields: Map<string, unknown>
  readonly calls: AssembledCall[]
  /** Places in `calls`, by the indexes that the provider sends. */
  readonly places: Map<unknown, number>
  /** The call in the deprecated form. */
  readonly functionCall: Map<string, unknown>
}

/** Returns the state before anything of a message has arrived. */
export function newAssembly(): Assembly {
  return {
    fields: new Map([['role', 'assistant']]),
    calls: [],
    places: new Map(),
    functionCall: new Map(),
  }
}

/**
 * Returns the place of the call that a piece belongs to: the newest call if the piece has no index. Some providers send
 * one index for several calls; a piece with another id and a name then begins a new call.
 */
function placeOf({ calls, places }: Assembly, piece: Json): number {
  const { index, id, custom, function: called } = piece
  const hasIndex = typeof index === 'number'
  const known = hasIndex ? (places.get(index) ?? -1) : calls.length - 1
  const knownId = textOf(calls[known]?.call.get('id'))
  const isOther =
    textOf(id) !== '' &&
    knownId !== '' &&
    id !== knownId &&
    textOf(propertyOf(isObject(custom) ? custom : called, 'name')) !== ''
  if (calls[known] && !isOther) return known
  const place = calls.push({ call: new Map(), called: new Map(), kind: 'function' }) - 1
  if (hasIndex) places.set(index, place)
  return place
}

/** Adds a delta and returns, for each of its pieces of calls, the place of the call that it belongs to. */
export function addDelta(assembly: Assembly, delta: Json): number[] {
  grow(assembly.fields, delta, ['tool_calls', 'function_call'])
  if (isObject(delta['function_call'])) grow(assembly.functionCall, delta['function_call'])
  return objectsOf(delta['tool_calls']).map((piece) => {
    const place = placeOf(assembly, piece)
    const entry = assembly.calls[place]
    if (!entry) return place
    if (isObject(piece['custom'])) entry.kind = 'custom'
    grow(entry.call, piece, ['index', 'function', 'custom'])
    const called = piece[entry.kind]
    if (isObject(called)) grow(entry.called, called)
    return place
  })
}

/** Returns the message in the form of a response that is not streamed. */
export function assembledMessage({ fields, calls, functionCall }: Assembly): Json {
  const listed = calls.map(({ call, called, kind }) => ({
    ...Object.fromEntries(call),
    [kind]: Object.fromEntries(called),
  }))
  return {
    content: null,
    ...Object.fromEntries(fields),
    ...(listed.length > 0 ? { tool_calls: listed } : {}),
    ...(functionCall.size > 0 ? { function_call: Object.fromEntries(functionCall) } : {}),
  }
}
