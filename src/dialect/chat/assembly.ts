/** A Chat Completions message put together from the deltas of a stream, in all the ways providers cut one up. */
import { isObject, type Json, textOf } from '../shared/json-object.ts'

/** Fields that are said once, or again in every piece; some providers empty them in all pieces but the first. */
const WHOLE = new Set(['id', 'type', 'role', 'index'])

/** Puts a piece of a streamed value onto what came of it before. */
function grown(key: string, before: unknown, piece: unknown): unknown {
  if (WHOLE.has(key)) return before || piece
  if (piece === null || piece === undefined) return before ?? piece
  // A name comes whole; some providers say it again with every piece of the arguments.
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

interface Call {
  readonly call: Map<string, unknown>
  readonly called: Map<string, unknown>
  kind: 'function' | 'custom'
}

function nameIn(piece: Json): string {
  const called = isObject(piece['custom']) ? piece['custom'] : piece['function']
  return isObject(called) ? textOf(called['name']) : ''
}

/** The pieces of calls in a delta. */
export function callPieces(delta: Json): Json[] {
  return Array.isArray(delta['tool_calls']) ? delta['tool_calls'].filter(isObject) : []
}

/** Does a delta call anything? Some providers have an empty list, or none, in each. */
export function callsIn(delta: Json): boolean {
  return callPieces(delta).length > 0 || isObject(delta['function_call'])
}

export function createAssembly() {
  const message = new Map<string, unknown>([['role', 'assistant']])
  const calls: Call[] = []
  const places = new Map<number, number>()
  const single = new Map<string, unknown>()

  const added = (index: unknown): number => {
    const place = calls.push({ call: new Map(), called: new Map(), kind: 'function' }) - 1
    if (typeof index === 'number') places.set(index, place)
    return place
  }

  /**
   * The call that a piece belongs to. Where there is no index it goes on with the newest; and where one index stands
   * for several calls, as some providers have it, a new one begins with an id and a name of its own.
   */
  const placeOf = (piece: Json): number => {
    const { index } = piece
    const known = typeof index === 'number' ? places.get(index) : calls.length - 1
    const entry = known === undefined ? undefined : calls[known]
    if (known === undefined || !entry) return added(index)
    const id = textOf(piece['id'])
    const ownId = textOf(entry.call.get('id'))
    const isOther = id !== '' && ownId !== '' && id !== ownId && nameIn(piece) !== ''
    return isOther ? added(index) : known
  }

  return {
    /** Takes a delta in; returns the places of the calls that its pieces belong to. */
    add(delta: Json): number[] {
      grow(message, delta, ['tool_calls', 'function_call'])
      if (isObject(delta['function_call'])) grow(single, delta['function_call'])
      return callPieces(delta).map((piece) => {
        const place = placeOf(piece)
        const entry = calls[place]
        if (!entry) return place
        if (isObject(piece['custom'])) entry.kind = 'custom'
        grow(entry.call, piece, ['index', 'function', 'custom'])
        const called = piece[entry.kind]
        if (isObject(called)) grow(entry.called, called)
        return place
      })
    },
    get message(): Json {
      const listed = calls.map(({ call, called, kind }) => ({
        ...Object.fromEntries(call),
        [kind]: Object.fromEntries(called),
      }))
      return {
        content: null,
        ...Object.fromEntries(message),
        ...(listed.length > 0 ? { tool_calls: listed } : {}),
        ...(single.size > 0 ? { function_call: Object.fromEntries(single) } : {}),
      }
    },
  }
}
