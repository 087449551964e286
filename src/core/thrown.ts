/** What a `catch` gets: anything may be thrown, most of all by other packages and by Node. */

/** Returns what was thrown as an error. */
export function errorOf(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown))
}

/** Returns Node's code of an error, such as `ENOENT`; `undefined` for anything else. */
export function codeOf(thrown: unknown): string | undefined {
  return thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'string' ? thrown.code : undefined
}

/** Returns why a file can't be read, in words, or Node's code for a rare reason. */
export function whyUnreadable(error: unknown): string {
  const code = codeOf(error)
  if (code === 'ENOENT') return 'no such file'
  if (code === 'EACCES') return 'permission denied'
  if (code === 'EISDIR') return 'a folder'
  return code ?? errorOf(error).message
}

/**
 * Takes what needs no answer, such as the failure of a step that may fail, and returns `undefined` in the place of a
 * result.
 */
export function ignore(): undefined {
  return undefined
}
