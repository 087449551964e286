/** Brings the texts of providers into one form: lower case, one kind of space, numbers as plain digits. */

/** The message of an error is in its first and last words; between them is a stack trace or the prompt. */
const HEAD = 8_192
const TAIL = 4_096

/** Returns the text, or its beginning and its end if it has more than 12 K characters. */
export function bounded(text: string): string {
  return text.length <= HEAD + TAIL ? text : `${text.slice(0, HEAD)}\n${text.slice(-TAIL)}`
}

const THOUSANDS: Readonly<Record<string, number>> = {
  k: 1_000,
  m: 1_000_000,
  千: 1_000,
  万: 10_000,
  萬: 10_000,
}

function expanded(_: string, digits: string, unit: string): string {
  const value = Math.round(Number(digits) * (THOUSANDS[unit] ?? 1))
  return Number.isSafeInteger(value) ? String(value) : digits
}

/** `131.072`; no amount of money, and no time or size, which may have thousandths. */
const DOTTED = /(?<![\w.,$€-])(\d{1,3})\.(\d{3})(?![\d%]|[.,]\d| ?(?:ms|s|secs?|seconds?|min|minutes?|[kmg]i?b)\b)/g

/** Nobody counts thousandths of a token: where a text writes tokens so, it writes all its numbers so. */
const DOTTED_TOKENS = /(?<![\w.,-])\d{1,3}\.\d{3} ?-?tokens?\b/

/**
 * Returns the text with numbers as plain digits: `131,072`, `131 072`, `200_000`, `1.048.576`, `128k`,
 * `12.8万`. Numbers that are part of a name (`gpt-4-32k`, `v1.2`) stay as they are.
 */
export function plainNumbers(text: string): string {
  const isDotted = DOTTED_TOKENS.test(text)
  return (isDotted ? text.replace(DOTTED, '$1$2') : text)
    .replace(/(?<![\w.,-])\d{1,3}([,_'’ \u00a0\u2009\u202f])\d{3}(?:\1\d{3}){0,3}(?![\d\]]|[.,]\d)/g, (number) =>
      number.replace(/\D/g, ''),
    )
    .replace(/(?<![\w.,-])\d{1,3}(?:\.\d{3}){2,4}(?![\d.])/g, (number) => number.replaceAll('.', ''))
    .replace(/(?<![\w.,-])(\d{4,15})\.0+(?!\d)/g, '$1')
    .replace(/(?<![\w.-])(\d{1,6}(?:\.\d{1,3})?) ?(k)(?![\w])/g, expanded)
    .replace(/(?<![\w.-])(\d{1,3}(?:\.\d{1,3})?) ?(m)(?=[ -]?(?:tok|context|window|max|limit|\)))/g, expanded)
    .replace(/(?<![\w.-])(\d{1,6}(?:\.\d{1,3})?) ?([千万萬])/g, expanded)
}

export function normalised(text: string): string {
  const plain = text
    .normalize('NFKC')
    .toLowerCase()
    .replace(/[`"“”«»*]/g, '')
    .replace(/[‘’´]/g, "'")
    // Doubly escaped JSON that could not be unwrapped.
    .replace(/\\+([nrt])?/g, (_, letter) => (letter ? ' ' : ''))
    .replace(/\s+/g, ' ')
  return plainNumbers(plain).trim()
}
