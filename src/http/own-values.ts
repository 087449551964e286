/** Keeps access keys and the admin token, which only Governor and its clients share, from upstreams. */
import { type RawHeaders, withoutFields } from './headers.ts'

/** Removes these values from what a client sent. */
export interface OwnValues {
  /** Returns the headers without each field that holds such a value. */
  withoutThemIn(headers: RawHeaders): RawHeaders
  /** Returns path and query without each parameter that holds such a value. */
  withoutThemInQuery(target: string): string
}

/** Shorter values are words that other values may contain by chance. */
const SURELY_SECRET = 8

function holds(text: string, value: string): boolean {
  for (let at = text.indexOf(value); at !== -1; at = text.indexOf(value, at + 1)) {
    const around = text.charAt(at - 1) + text.charAt(at + value.length)
    if (value.length >= SURELY_SECRET || !/[\w-]/.test(around)) return true
  }
  return false
}

/**
 * Returns the ways to read a text: as it is, without percent-encoding, and as user and password (RFC 7617).
 */
function readingsOf(text: string): string[] {
  // However often percent-encoding was applied.
  const plain = text.replace(/%(?:25)*([0-9a-f]{2})/gi, (_, hex: string) =>
    String.fromCharCode(Number.parseInt(hex, 16)),
  )
  const [, basic] = /\bbasic +([\w+/-]+)/i.exec(plain) ?? []
  return [text, plain, basic === undefined ? '' : Buffer.from(basic, 'base64').toString('latin1')]
}

/** Creates the filter; values are found in any field and parameter, also beside other text. */
export function createOwnValues(values: readonly string[]): OwnValues {
  if (values.length === 0) return { withoutThemIn: (headers) => headers, withoutThemInQuery: (target) => target }
  const isIn = (text: string) => readingsOf(text).some((reading) => values.some((value) => holds(reading, value)))
  return {
    withoutThemIn: (headers) => withoutFields(headers, (name, value) => isIn(`${name}: ${value}`)),
    withoutThemInQuery(target) {
      const at = target.indexOf('?')
      if (at === -1 || !isIn(target.slice(at))) return target
      const kept = target
        .slice(at + 1)
        .split('&')
        .filter((parameter) => !isIn(parameter))
        .join('&')
      // A value that is still there spans several parameters.
      return target.slice(0, at) + (kept === '' || isIn(kept) ? '' : `?${kept}`)
    },
  }
}
