/** Kinds of values in a configuration: durations, sizes and counts as people write them, and keys with a default. */
import * as z from 'zod'

const MILLISECONDS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }
const COUNTS = { k: 1_000, m: 1_000_000 }
const BYTES = { b: 1, kb: 1_024, mb: 1_048_576, gb: 1_073_741_824 }

/** RFC 9110 token: the characters of a header name. */
export const headerName = z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'expected a header name')

/** The schema of a number with one of these units; what it holds is the number times the unit. */
function unitType(units: Readonly<Record<string, number>>, expected: string, max: number) {
  const pattern = new RegExp(`^\\s*(\\d+(?:\\.\\d+)?) ?(${Object.keys(units).join('|')})\\s*$`, 'i')
  const amountOf = (text: string) => {
    const [, digits, unit = ''] = pattern.exec(text) ?? []
    return Math.round(Number(digits) * (units[unit.toLowerCase()] ?? 1))
  }
  return z
    .string(expected)
    .regex(pattern, expected)
    .refine((text) => !(amountOf(text) > max), `too much: ${expected}`)
    .transform(amountOf)
}

/** `30s`, `15m`, `1h`: parsed to milliseconds. */
export const duration = unitType(
  MILLISECONDS,
  'expected a length of time such as 500ms, 30s, 15m, 1h or 2d',
  // The longest time of Node's timers: a little over 24 days.
  2_147_483_647,
)

/** `64mb`, `512kb`: parsed to bytes; 1 kb is 1,024 bytes. */
export const size = unitType(BYTES, 'expected a size such as 512kb, 64mb or 1gb', Number.MAX_SAFE_INTEGER)

const COUNT = 'expected a whole number of 0 or more, such as 2000000, 250k or 2M'

/** `2000000`, `250k`, `2M`: a whole number of at least 0; 1 k is 1,000. */
export const count = z.union([z.int().min(0), unitType(COUNTS, COUNT, Number.MAX_SAFE_INTEGER)], COUNT)

const SECONDS = 'expected a number of seconds, or a length of time such as 90s, 10m or 2h'

/** `600`, `90s`, `10m`: parsed to seconds. */
export const seconds = z.union(
  [z.number().min(0), unitType(MILLISECONDS, SECONDS, Number.MAX_SAFE_INTEGER).transform((ms) => ms / 1_000)],
  SECONDS,
)

const DOLLARS = 'expected a number of dollars of 0 or more, such as 5, 0.25 or "$5"'

/** `5`, `0.25`, `$5`, `5 USD`: parsed to US dollars. */
export const dollars = z.union(
  [
    z.number().min(0),
    z
      .string()
      .regex(/^\s*(?:\$ ?)?\d+(?:\.\d+)?(?: ?(?:usd|dollars?|\$))?\s*$/i)
      .transform((text) => Number(/[\d.]+/.exec(text)?.[0])),
  ],
  DOLLARS,
)

export const filled = z.string().min(1)

/** A key with a default, as the file writes it. */
export const key = <Schema extends z.ZodType>(schema: Schema, otherwise: z.input<Schema>, example?: z.input<Schema>) =>
  schema.prefault(otherwise as never).meta(example === undefined ? {} : { examples: [example] })

export const optional = <Schema extends z.ZodType>(schema: Schema, example?: unknown) =>
  schema.optional().meta(example === undefined ? {} : { examples: [example] })

export const address = (example: string) =>
  optional(z.url({ protocol: /^https?$/, error: `expected an address such as ${example}` }), example)

/** A section whose keys all have defaults. */
export const section = <Shape extends z.core.$ZodLooseShape>(shape: Shape) =>
  z.strictObject(shape).prefault({} as never)

export const flag = (otherwise: boolean) => z.boolean().default(otherwise)

/** A key with one of several words; `off`: what to write in place of a word that says that it is off. */
export const choice = <const Words extends readonly string[]>(words: Words, otherwise: Words[number], off?: string) =>
  key(
    z.enum(words, {
      error: ({ input }) =>
        off && /^(?:off|false|no|none|disabled?)$/i.test(String(input))
          ? `expected one of ${words.join(', ')}; ${off}`
          : undefined,
    }),
    otherwise as never,
  )

/** A key with a whole number from `least` to `most`. */
export const whole = (least: number, most: number, otherwise: number) => key(z.int().min(least).max(most), otherwise)
