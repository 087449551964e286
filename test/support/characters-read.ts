/** Counts the characters that string searches read, so that a test can tell linear from quadratic work without a clock. */

type Method = (this: unknown, ...args: unknown[]) => unknown
type Count = (text: string, args: readonly unknown[], result: unknown) => number

const all: Count = (text) => text.length
/** White space that was removed. */
const removed: Count = (text, _, left) => text.length - String(left).length
const untilFound: Count = (text, [, from = 0], at) => (at === -1 ? text.length : Number(at)) - Number(from)
const argument: Count = (_, [text]) => String(text).length

/** What methods read at most. */
const READERS: readonly (readonly [object, Readonly<Record<string, Count>>])[] = [
  [
    String.prototype,
    {
      trim: removed,
      trimStart: removed,
      trimEnd: removed,
      replace: all,
      replaceAll: all,
      split: all,
      match: all,
      includes: all,
      indexOf: untilFound,
      startsWith: argument,
    },
  ],
  [RegExp.prototype, { test: argument, exec: argument }],
]

/** Runs `work` and returns how many characters were read in it. */
export function charactersRead(work: () => void): number {
  let count = 0
  const restore = READERS.flatMap(([owner, counts]) =>
    Object.entries(counts).map(([name, countOf]) => {
      const methods = owner as Record<string, Method>
      const original = methods[name] as Method
      methods[name] = function (...args) {
        const result = original.apply(this, args)
        count += countOf(String(this), args, result)
        return result
      }
      return () => {
        methods[name] = original
      }
    }),
  )
  try {
    work()
  } finally {
    for (const one of restore) one()
  }
  return count
}
