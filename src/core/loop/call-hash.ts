/** Hashes tool calls by tool and arguments, whatever the order of keys and the white space in the arguments. */
import { countValues, parseForeign } from '../foreign-json.ts'
import { type Hash, hashOf } from '../hash.ts'
import { STEPS_PER_VALUE, type Work } from '../work.ts'

/** Arguments in which a model comments on its call: another wording makes no other call. */
const COSMETIC: ReadonlySet<string> = new Set(['description', 'task_progress'])

const STRING = /"[^"\\]*(?:\\[\s\S][^"\\]*)*"/g
const NUMBER = /-?\d[\d.eE+-]*/g

/** Returns the JSON of a value with sorted keys; without those in `left`, where there are others. */
function sorted(value: unknown, left?: ReadonlySet<string>): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map((item) => sorted(item)).join()}]`
  const keys = Object.keys(value).sort()
  const others = keys.filter((key) => !left?.has(key))
  const members = (others.length > 0 ? others : keys).map(
    (key) => `${JSON.stringify(key)}:${sorted(Reflect.get(value, key))}`,
  )
  return `{${members.join()}}`
}

/**
 * Returns the arguments with the keys of every object sorted, without white space and cosmetic arguments. Text that is
 * not JSON, or is too long or too deep to be read, stays as it is. JSON with a number that would be written with other
 * digits only loses the white space around it. Throws `TooMuchToRead`.
 */
export function canonicalArguments(text: string, work?: Work): string {
  const values = countValues(text)
  if (values === undefined) return text
  work?.spend(values * STEPS_PER_VALUE)
  try {
    const value = parseForeign(text, Number.POSITIVE_INFINITY)
    const numbers = text.replace(STRING, '').match(NUMBER) ?? []
    return numbers.every((number) => String(Number(number)) === number)
      ? sorted(value, COSMETIC)
      : text.trim()
  } catch {
    return text
  }
}

/** Hashes (sha256) a call with the arguments as the model wrote them, JSON or not. Throws `TooMuchToRead`. */
export function callHash(tool: string, argumentsText: string, work?: Work): Hash {
  return hashOf(`${tool.length}:${tool}${canonicalArguments(argumentsText, work)}`)
}
