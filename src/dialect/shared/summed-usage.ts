/** Adds up the usage of several responses that the client sees as one. */
import { isObject, type Json, parseObject } from '../../core/json-object.ts'

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
