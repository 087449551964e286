/** Puts a message together from the deltas of a stream, in all the ways in which providers split one. */
import { isObject, type Json, objectsOf, propertyOf, textOf } from '../../core/json-object.ts'

/** Fields whose value comes whole. Some providers repeat them in every piece; others leave them empty later. */
const WHOLE = new Set(['id', 'type', 'role', 'index'])

/** Returns a streamed value with another piece of it added. */
function grown(key: string, before: unknown, piece: unknown): unknown {
  if (WHOLE.has(key)) return before || piece
  if (piece === null || piece === undefined) return before ?? piece
  // A name comes whole; some providers repeat it with every piece of the arguments.
  if (key === 'name' && before === piece) return before
  if (typeof before === 'string' && typeof piece === 'string') return before + piece
  if (Array.isArray(before) && Array.isArray(piece)) return [...before, ...piece]
  return piece
}

function grow(target: Map<string, unknown>, piece: Json, except: readonly string[] = []): void {
  for (const [key, value] of Object.entries(piece)) {
    if (!except.includes(key)) target.set(key, grown(key, target.get(key), value))
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
  readonly places: Map<number, number>
  /** The call in the deprecated form. */
  readonly functionCall: Map<string, unknown>
}

/** Returns the pieces of calls in a delta. */
export function callPieces(delta: Json): Json[] {
  return objectsOf(delta['tool_calls'])
}

/** True if a delta contains a piece of a call. Some providers send an empty list in every delta. */
export function hasCallPieces(delta: Json): boolean {
  return callPieces(delta).length > 0 || isObject(delta['function_call'])
}

/** Returns a message of which nothing has arrived. */
export function newAssembly(): Assembly {
  return {
    fields: new Map([['role', 'assistant']]),
    calls: [],
    places: new Map(),
    functionCall: new Map(),
  }
}

function addCall({ calls, places }: Assembly, index: unknown): number {
  const place = calls.push({ call: new Map(), called: new Map(), kind: 'function' }) - 1
  if (typeof index === 'number') places.set(index, place)
  return place
}

/**
 * Returns the place of the call that a piece belongs to: the newest call if the piece has no index. Some providers send
 * one index for several calls; a piece with another id and a name then begins a new call.
 */
function placeOf(assembly: Assembly, piece: Json): number {
  const { calls, places } = assembly
  const { index } = piece
  const known = typeof index === 'number' ? places.get(index) : calls.length - 1
  const entry = known === undefined ? undefined : calls[known]
  if (known === undefined || !entry) return addCall(assembly, index)
  const id = textOf(piece['id'])
  const knownId = textOf(entry.call.get('id'))
  const name = textOf(propertyOf(isObject(piece['custom']) ? piece['custom'] : piece['function'], 'name'))
  const isOther = id !== '' && knownId !== '' && id !== knownId && name !== ''
  return isOther ? addCall(assembly, index) : known
}

/** Adds a delta and returns, for each of its pieces of calls, the place of the call that it belongs to. */
export function addDelta(assembly: Assembly, delta: Json): number[] {
  grow(assembly.fields, delta, ['tool_calls', 'function_call'])
  if (isObject(delta['function_call'])) grow(assembly.functionCall, delta['function_call'])
  return callPieces(delta).map((piece) => {
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
