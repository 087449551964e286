/** Reads what a request of the API gives: its shape, and the session that it names. */
import type * as z from 'zod'
import { idsNamed, keyOf, type ListedSession, type Store } from '../../store/store.ts'
import { problem, RequestProblem } from '../problem.ts'

/** Returns what was given, if it has that shape. @throws {RequestProblem} */
export function validated<Shape extends z.ZodType>(shape: Shape, given: unknown, what: string): z.output<Shape> {
  const { success, data, error } = shape.safeParse(given)
  if (success) return data
  const [issue] = error.issues
  const where = issue && issue.path.length > 0 ? `${issue.path.join('.')}: ` : ''
  throw new RequestProblem(400, 'invalid_request', `${what}: ${where}${issue?.message ?? 'not valid'}`)
}

/** Returns the session with an id of the API, or with a name in header, log and webhook. @throws {RequestProblem} */
export async function sessionIn(store: Store, id: string): Promise<ListedSession> {
  const key = keyOf(id)
  const session = key && (await store.get(key))
  if (session) return { key, session }
  let found: ListedSession | undefined
  let isWhole = true
  const missed = () => {
    isWhole = false
  }
  for await (const named of store.all(idsNamed(id), missed)) {
    if (found) throw problem('ambiguous_name')
    found = named
  }
  if (!found) throw problem(isWhole ? 'unknown_session' : 'store_unreachable')
  return found
}
