/** Finds the id in a request body that names its session. */
import { parseObject, propertyOf } from '../../core/json-object.ts'
import type { IndexedList } from '../dialect.ts'
import { fieldOf } from './request-list.ts'

/** Returns the session id at a path of keys in a body; `undefined` if there is none. */
export function sessionIdAt(request: IndexedList, path: readonly string[]): string | undefined {
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
