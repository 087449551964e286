/** The ids in a request's body that name its session. */
import { MAX_LENGTH, parseForeign } from '../../core/foreign-json.ts'
import type { Work } from '../../core/work.ts'
import { isObject } from './json-object.ts'

function parsed(text: string, work: Work): unknown {
  try {
    return parseForeign(text, MAX_LENGTH, work)
  } catch {
    return undefined
  }
}

function property(value: unknown, key: string): unknown {
  return isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
}

/**
 * A user id is shared by many sessions. Only Claude Code puts its session into it, as a JSON string or, in older versions,
 * after `_session_`.
 */
function sessionInUserId(userId: string, work: Work): string | undefined {
  const inside = property(parsed(userId, work), 'session_id')
  if (typeof inside === 'string' && inside !== '') return inside
  return /_session_([0-9a-f-]{36})$/.exec(userId)?.[1]
}

/** Returns the session id at a path of keys in a body; `undefined` where there is none. `field` decodes a top-level field. */
export function sessionIdAt(
  field: (name: string) => unknown,
  path: readonly string[],
  work: Work,
): string | undefined {
  let value = field(path[0] ?? '')
  for (let at = 1; at < path.length && value !== undefined; at++) value = property(value, path[at] ?? '')
  // An object with an id stands for its id: {"conversation": {"id": "conv_1"}}.
  const id = typeof value === 'string' ? value : property(value, 'id')
  if (typeof id !== 'string' || id.trim() === '') return undefined
  return path.at(-1) === 'user_id' ? sessionInUserId(id, work) : id.trim()
}
