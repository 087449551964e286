/** Finds the id in a request body that names its session. */
import { MAX_LENGTH, parseForeign } from '../../core/foreign-json.ts'
import type { Work } from '../../core/work.ts'
import { propertyOf } from './json-object.ts'

function parsed(text: string, work: Work): unknown {
  try {
    return parseForeign(text, MAX_LENGTH, work)
  } catch {
    return undefined
  }
}

/**
 * Returns the session in a user id, which itself belongs to many sessions. Only Claude Code puts one there: in a JSON text,
 * or after `_session_` in older versions.
 */
function sessionInUserId(userId: string, work: Work): string | undefined {
  const session = propertyOf(parsed(userId, work), 'session_id')
  if (typeof session === 'string' && session !== '') return session
  return /_session_([0-9a-f-]{36})$/.exec(userId)?.[1]
}

/** Returns the session id at a path of keys in a body; `undefined` if there is none. `field` decodes a top-level field. */
export function sessionIdAt(
  field: (name: string) => unknown,
  path: readonly string[],
  work: Work,
): string | undefined {
  let value = field(path[0] ?? '')
  for (let at = 1; at < path.length && value !== undefined; at++) value = propertyOf(value, path[at] ?? '')
  // An object with an id stands for its id: {"conversation": {"id": "conv_1"}}.
  const id = typeof value === 'string' ? value : propertyOf(value, 'id')
  if (typeof id !== 'string' || id.trim() === '') return undefined
  return path.at(-1) === 'user_id' ? sessionInUserId(id, work) : id.trim()
}
