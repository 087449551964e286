/** Makes texts that take a regular expression long: repeated parts of texts that it matches. */
import { RegExpParser, visitRegExpAST } from '@eslint-community/regexpp'

const SAMPLES = 24
/** How often a repetition of a sample is repeated at most, in turns. */
const REPEATS = [1, 5, 60]
/** Texts that many expressions stop at, or go on with. */
const COMMON = ['a', ' ', '7', '\n', '-', '"', '\\', 'A', '.']

/** The same numbers from 0 to 1 in every run. */
function numbers(seed) {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff
    return state / 0x80000000
  }
}

function pick(list, next) {
  return list[Math.floor(next() * list.length)]
}

/** A character of a set; the classes of Unicode are left to the common texts. */
function characterOf(node, next) {
  if (node.type === 'Character') return String.fromCodePoint(node.value)
  if (node.type === 'CharacterClassRange') {
    const span = Math.min(26, node.max.value - node.min.value + 1)
    return String.fromCodePoint(node.min.value + Math.floor(next() * span))
  }
  if (node.type === 'CharacterClass' && !node.negate)
    return node.elements.length > 0 ? characterOf(pick(node.elements, next), next) : ''
  const among = new RegExp(node.raw, 'u')
  return COMMON.find((text) => among.test(text)) ?? 'é'
}

/** A text that a part of an expression matches, most of the time: what stands around it is not looked at. */
function sampleOf(node, next, repeats) {
  switch (node.type) {
    case 'Pattern':
    case 'Group':
    case 'CapturingGroup':
      return sampleOf(pick(node.alternatives, next), next, repeats)
    case 'Alternative':
      return node.elements.map((element) => sampleOf(element, next, repeats)).join('')
    case 'Quantifier': {
      const most = Math.min(node.max, node.min + repeats)
      const count = next() < 0.5 ? most : node.min + Math.floor(next() * (most - node.min + 1))
      return Array.from({ length: count }, () => sampleOf(node.element, next, repeats)).join('')
    }
    case 'Assertion':
    case 'Backreference':
      return ''
    default:
      return characterOf(node, next)
  }
}

/** Returns texts of `size` characters for an expression. */
export function attacksOn({ source, flags }, size) {
  const pattern = new RegExpParser().parsePattern(source, 0, source.length, { unicode: flags.includes('u') })
  const units = new Set(COMMON)
  const next = numbers(1)
  for (let at = 0; at < SAMPLES; at++) {
    const sample = sampleOf(pattern, next, REPEATS[at % REPEATS.length])
    // A text that nearly matches makes an expression try the longest, and give up.
    for (const part of [sample, sample.slice(0, -1), sample.slice(0, Math.ceil(sample.length / 2))])
      if (part !== '') units.add(part)
  }
  visitRegExpAST(pattern, { onCharacterEnter: ({ value }) => units.add(String.fromCodePoint(value)) })
  return [...units].map((unit) => `${unit.repeat(Math.ceil(size / unit.length)).slice(0, size - 1)}\u0000`)
}
