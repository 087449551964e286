/** JSON texts with any white space, any escapes, and duplicate keys. */
import fc from 'fast-check'

const space = fc.array(fc.constantFrom(' ', '\n', '\r', '\t'), { maxLength: 2 }).map((all) => all.join(''))

const character = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom('a', 'b', '0', '"', '\\', '/', ',', ':', '{', '}', '[', ']', ' ') },
  { weight: 2, arbitrary: fc.constantFrom('ä', '€', '😀', '\n', '\t', '\u0000', '\u2028') },
  { weight: 1, arbitrary: fc.string({ unit: 'binary', maxLength: 1 }) },
)

function unicodeEscape(text: string): string {
  return [...Array(text.length).keys()].map((at) => `\\u${text.charCodeAt(at).toString(16).padStart(4, '0')}`).join('')
}

/** A string as JSON text, each character either as JSON.stringify writes it or as an escape. */
export const stringText = fc
  .array(fc.tuple(character, fc.nat({ max: 4 })), { maxLength: 6 })
  .map((all) =>
    all.map(([text, dice]) => (dice === 0 ? unicodeEscape(text) : JSON.stringify(text).slice(1, -1))).join(''),
  )
  .map((inside) => `"${inside}"`)

const scalarText = fc.oneof(
  fc.constantFrom('null', 'true', 'false', '0', '-0', '1.0', '1E+2', '9007199254740993', '-12.50e-3'),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((number) => JSON.stringify(number)),
)

const separated = (items: fc.Arbitrary<string>, maxLength: number) =>
  fc.array(fc.tuple(space, items, space), { maxLength }).map((all) => all.map((piece) => piece.join('')).join(','))

const { value, array, object } = fc.letrec<{ value: string; array: string; object: string }>((tie) => ({
  value: fc.oneof({ depthSize: 'small', withCrossShrink: true }, scalarText, stringText, tie('array'), tie('object')),
  array: fc.tuple(separated(tie('value'), 4), space).map(([inside, end]) => `[${inside}${end}]`),
  object: fc
    .tuple(
      separated(
        fc
          .tuple(fc.oneof(stringText, fc.constantFrom('"a"', '"\\u0061"', '"b"', '""')), space, space, tie('value'))
          .map(([key, before, after, value]) => `${key}${before}:${after}${value}`),
        5,
      ),
      space,
    )
    .map(([inside, end]) => `{${inside}${end}}`),
}))

const padded = (inner: fc.Arbitrary<string>) => fc.tuple(space, inner, space).map((pieces) => pieces.join(''))

/** A value with white space around it; an object; an array. */
export const jsonText = padded(value)
export const objectText = padded(object)
export const arrayText = padded(array)
