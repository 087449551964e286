import { nameOf } from '../hash.ts'

/** Longer ids, and ids that a header cannot hold, are replaced by their hash. */
const MAX_ID = 200

/** Returns an id of a client or a provider in a form that can be stored and sent in a header. */
export function presentable(id: string): string {
  return id.length <= MAX_ID && /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(id) ? id : nameOf(id)
}
