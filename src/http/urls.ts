/** Reads URLs, the targets of requests, and their paths, as the servers behind Governor may read them. */

/** Returns a URL or a path without slashes at its end. Looks at each character once, however many slashes there are. */
export function withoutTrailingSlashes(text: string): string {
  return text.replace(/(?<!\/)\/+$/, '')
}

/** Returns whether a host name or address, without port and brackets, is one of the loopback interface. */
export function isLoopback(host: string): boolean {
  return /^(?:(?:.+\.)?localhost|127\.\d+\.\d+\.\d+|::1)$/i.test(host)
}

/** Returns the path of a request target, without the host of its absolute form (RFC 9112, section 3.2). */
export function pathOf(target: string): string {
  if (target.startsWith('/')) return target
  const [authority] = /^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i.exec(target) ?? []
  if (authority === undefined) return target
  const rest = target.slice(authority.length)
  return rest.startsWith('/') ? rest : `/${rest}`
}

/** Characters that some servers take for a slash, however often they are encoded. */
const SEPARATORS: readonly RegExp[] = [/%(?:25)*2f/gi, /\\/g, /%(?:25)*5c/gi]

/** Returns a path with any set of these characters as slashes: nobody knows which ones a server follows. */
function* readingsOf(path: string, [separator, ...others]: readonly RegExp[] = SEPARATORS): Iterable<string> {
  if (!separator) return yield path
  yield* readingsOf(path, others)
  const split = path.replace(separator, '/')
  if (split !== path) yield* readingsOf(split, others)
}

/** Two dots, apart from any name; what follows may be a parameter (`..;`), an end for some servers, or a separator. */
const DOT_SEGMENT = /(?<![\w~.\x80-\uffff-])\.[^!-\uffff]*\.(?![\w~.\x80-\uffff-])/g
/** What begins otherwise may be nothing but a parameter, which some servers remove. */
const NAME = /^\.*[\w~\x80-\uffff-]/

/**
 * Returns whether dot segments (RFC 3986, section 5.2.4) leave a path, in any percent-encoding; each counts one level
 * at most.
 */
export function climbsOut(path: string): boolean {
  if (!/%|\.\./.test(path)) return false
  let depth = 0
  for (const segment of path.split('/')) {
    const text = segment.replace(/%(?:25)*([0-9a-f]{2})/gi, (_, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    )
    if (NAME.test(text)) depth++
    depth -= text.match(DOT_SEGMENT)?.length ?? 0
    if (depth < 0) return true
  }
  return false
}

/** Returns, in lower case and without parameters, every first segment that a server may find in a target. */
export function firstSegmentsOf(target: string): string[] {
  const [path = ''] = pathOf(target).split('?', 1)
  const [, plain] = /^\/([\w-]+)(?:\/[\w-][\w.:@-]*)*\/?$/.exec(path) ?? []
  if (plain !== undefined) return [plain.toLowerCase()]
  // Undoes the percent-encoding of characters other than slashes and backslashes, however often it was applied.
  const unescaped = path.replace(/%(?:25)*([2-7][0-9a-f])/gi, (all, hex: string) =>
    /2f|5c/i.test(hex) ? all : String.fromCharCode(Number.parseInt(hex, 16)),
  )
  const found: string[] = []
  for (const reading of readingsOf(unescaped)) {
    let first: string | undefined
    const kept: string[] = []
    for (const segment of segmentsOf(reading)) {
      if (segment === '.') continue
      first ??= segment
      if (segment === '..') kept.pop()
      else kept.push(segment)
    }
    for (const one of [first, kept[0]]) found.push(one?.split(/[?#;]/, 1)[0]?.trim().toLowerCase() ?? '')
  }
  return found
}

export function segmentsOf(path: string): string[] {
  return path.match(/[^/]+/g) ?? []
}

/** The most targets for which a result is remembered, and the longest one. */
const MAX_TARGETS = 256

/**
 * Returns a function with the same results that remembers some: programs ask for few targets. A query may hold a key.
 */
export function remembered<Result>(find: (target: string) => Result): (target: string) => Result {
  const known = new Map<string, Result>()
  return (target) => {
    const before = known.get(target)
    if (before !== undefined) return before
    const result = find(target)
    const isKept = known.size < MAX_TARGETS && target.length <= MAX_TARGETS && !target.includes('?')
    if (isKept) known.set(target, result)
    return result
  }
}
