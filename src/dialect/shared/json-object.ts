import { parseForeign } from '../../core/foreign-json.ts'

/** Decoded JSON that came from outside: every field may be missing or of another type. */
export type Json = Record<string, unknown>

/** True for a JSON object; false for arrays and null. */
export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Parses a JSON object; `undefined` if the text is anything else, or holds more or deeper values than are built. */
export function parseObject(text: string): Json | undefined {
  try {
    const value: unknown = parseForeign(text, text.length)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

/** Returns the value if it is a string, else the empty string. */
export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/** Returns the own property `key` of a value; `undefined` if the value is not an object or lacks it. */
export function propertyOf(value: unknown, key: string): unknown {
  return isObject(value) && Object.hasOwn(value, key) ? value[key] : undefined
}

/** Returns the objects in a list; an empty list if the value is not a list. */
export function objectsOf(value: unknown): Json[] {
  return Array.isArray(value) ? value.filter(isObject) : []
}

/** Returns the sum of two usage objects, number by number, nested details included. */
export function addUsage(a: unknown, b: unknown): unknown {
  if (typeof a === 'number' && typeof b === 'number') return a + b
  if (!isObject(a) || !isObject(b)) return b ?? a
  const keys = new Set([...Object.keys(a), ...Object.keys(b)])
  return Object.fromEntries([...keys].map((key) => [key, addUsage(a[key], b[key])]))
}

/** Returns `{usage}` with the summed usage of all these responses; an empty object if none states any. */
export function summedUsage(earlier: readonly Json[], response: Json): Json {
  const stated = [...earlier, response].map(({ usage }) => usage).filter(isObject)
  return stated.length > 0 ? { usage: stated.reduce<unknown>(addUsage, undefined) } : {}
}

/** Parses bodies as objects; a body that is not an object becomes an empty one. */
export function objectsIn(bodies: readonly Buffer[]): Json[] {
  return bodies.map((body) => parseObject(body.toString('utf8')) ?? {})
}
