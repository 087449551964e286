/** Hashes tool calls by tool and arguments, whatever the order of keys and the white space in the arguments. */
import { countValues, parseForeign } from '../foreign-json.ts'
import { type Hash, hashOf } from '../hash.ts'
import { STEPS_PER_VALUE, type Work } from '../work.ts'

/** Arguments in which a model comments on its call: another wording makes no other call. */
const COSMETIC: ReadonlySet<string> = new Set(['description', 'task_progress'])

/** A string of JSON, or a number where a value may stand. A string that is not closed ends with the text. */
const SCALAR =
  /"[^"\\]*(?:\\[\s\S][^"\\]*)*(?:"|\\?$)|(?<![\w.+-])-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-]|[ \t\n\r]*:)/g

const STRING = 's'
const NUMBER = 'n'

/** Returns the JSON of a value with the keys of every object sorted; of the outermost without cosmetic ones, where there are others. */
function sorted(value: unknown, isOutermost = false): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map((item) => sorted(item)).join()}]`
  const keys = Object.keys(value)
  const others = isOutermost ? keys.filter((key) => !COSMETIC.has(key.slice(STRING.length))) : keys
  const members = (others.length > 0 ? others : keys).sort().map((key) => {
    return `${JSON.stringify(key)}:${sorted(Reflect.get(value, key))}`
  })
  return `{${members.join()}}`
}

/**
 * Returns the arguments with the keys of every object sorted, without white space and cosmetic arguments. Text that is not
 * JSON, or is too long or too deep to be read, stays as it is. For comparing only: numbers are texts of their digits, so
 * that 1.0 is not 1 and no digit is lost, and each text begins with a letter that says which it was. Throws `TooMuchToRead`.
 */
export function canonicalArguments(text: string, work?: Work): string {
  const values = countValues(text)
  if (values === undefined) return text
  work?.spend(values * STEPS_PER_VALUE)
  const marked = text.replace(SCALAR, (scalar) =>
    scalar.startsWith('"') ? `"${STRING}${scalar.slice(1)}` : `"${NUMBER}${scalar}"`,
  )
  let value: unknown
  try {
    value = parseForeign(marked, Number.POSITIVE_INFINITY)
  } catch {
    return text
  }
  return sorted(value, true)
}

/** Hash (sha256) of a call of `tool` with the arguments as the model wrote them, JSON or not. Throws `TooMuchToRead`. */
export function callHash(tool: string, argumentsText: string, work?: Work): Hash {
  return hashOf(`${tool.length}:${tool}${canonicalArguments(argumentsText, work)}`)
}
