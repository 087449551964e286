/** Reads decoded JSON whose fields are not checked yet. */
import { parseForeign } from './foreign-json.ts'
import type { Work } from './work.ts'

/** Decoded JSON that came from outside: every field may be missing or of another type. */
export type Json = Record<string, unknown>

/** True for a JSON object; false for arrays and null. */
export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/**
 * Parses a JSON object; `undefined` if the text is anything else, or holds more or deeper values than are built. `work`
 * counts it.
 */
export function parseObject(text: string, work?: Work): Json | undefined {
  try {
    const value: unknown = parseForeign(text, text.length, work)
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
