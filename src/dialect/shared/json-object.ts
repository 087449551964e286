import { parseForeign } from '../../core/foreign-json.ts'

/** Decoded JSON that came from outside: every field may be missing or of another type. */
export type Json = Record<string, unknown>

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function parseObject(text: string): Json | undefined {
  try {
    const value: unknown = parseForeign(text, text.length)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

/** The text, or nothing where it is none. */
export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/** The objects of a list; none where it is no list. */
export function objectsOf(value: unknown): Json[] {
  return Array.isArray(value) ? value.filter(isObject) : []
}

/** Adds two usage objects number by number, nested details included. */
export function addUsage(a: unknown, b: unknown): unknown {
  if (typeof a === 'number' && typeof b === 'number') return a + b
  if (!isObject(a) || !isObject(b)) return b ?? a
  const keys = new Set([...Object.keys(a), ...Object.keys(b)])
  return Object.fromEntries([...keys].map((key) => [key, addUsage(a[key], b[key])]))
}

/** The usage of a response together with that of `earlier` ones, as the member it goes into; nothing where none says any. */
export function summedUsage(earlier: readonly Json[], response: Json): Json {
  const usage = [...earlier, response].map((one) => one['usage']).filter(isObject)
  return usage.length > 0 ? { usage: usage.reduce<unknown>(addUsage, undefined) } : {}
}

/** Bodies as objects; one that is none has no members. */
export function objectsIn(bodies: readonly Buffer[]): Json[] {
  return bodies.map((body) => parseObject(body.toString('utf8')) ?? {})
}
