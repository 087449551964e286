/**
 * Finds what `scslre` does not look for: a regular expression that reads a text of several repeated characters again and
 * again. `"(?:[^"\\]|\\.)*"` is linear on each start, but on `\"\"\"…` it starts at each quote and reads up to the end.
 *
 * The expression becomes an automaton whose states are its characters, and one more for the text before a match. It is
 * not linear if it can be in two states on one repeated text, with a way from the first to the second.
 */
import { type AST, RegExpParser } from '@eslint-community/regexpp'

/** A bounded repetition is followed so many times. */
const MOST_COPIES = 4
/** Characters beside those of the expression, one of each kind that classes tell apart. */
const OTHERS = ['a', 'Z', '7', ' ', '\n', '_', '"', '\\', '.', '\u0000', 'é']
/** The state before a match: any character leads back to it. */
const BEFORE = 0

interface Automaton {
  /** Of each state the characters that lead to it. */
  readonly characters: ReadonlySet<string>[]
  readonly next: Set<number>[]
}

/** Where a part of an expression begins and ends; `isEmpty`: it may match nothing. */
interface Part {
  readonly first: readonly number[]
  readonly last: readonly number[]
  readonly isEmpty: boolean
}

const NOTHING: Part = { first: [], last: [], isEmpty: true }

function joined(automaton: Automaton, one: Part, other: Part): Part {
  for (const state of one.last) for (const next of other.first) automaton.next[state]?.add(next)
  return {
    first: one.isEmpty ? [...one.first, ...other.first] : one.first,
    last: other.isEmpty ? [...one.last, ...other.last] : other.last,
    isEmpty: one.isEmpty && other.isEmpty,
  }
}

function partOf(automaton: Automaton, node: AST.Node, flags: string, alphabet: readonly string[]): Part {
  const read = (inner: AST.Node) => partOf(automaton, inner, flags, alphabet)
  switch (node.type) {
    case 'Alternative':
      return node.elements.map(read).reduce((one, other) => joined(automaton, one, other), NOTHING)
    case 'Pattern':
    case 'Group':
    case 'CapturingGroup': {
      const parts = node.alternatives.map(read)
      return {
        first: parts.flatMap(({ first }) => first),
        last: parts.flatMap(({ last }) => last),
        isEmpty: parts.some(({ isEmpty }) => isEmpty),
      }
    }
    case 'Quantifier': {
      let whole = NOTHING
      const copies = Math.max(1, Math.min(node.max, Math.max(node.min, MOST_COPIES)))
      for (let copy = 0; copy < (node.max === Number.POSITIVE_INFINITY ? Math.max(1, node.min) : copies); copy++) {
        const one = read(node.element)
        const isLast = node.max === Number.POSITIVE_INFINITY && copy >= node.min - 1
        if (isLast) joined(automaton, one, one)
        whole = joined(automaton, whole, copy < node.min ? one : { ...one, isEmpty: true })
      }
      return whole
    }
    // What stands around a match is not looked at.
    case 'Assertion':
    case 'Backreference':
      return NOTHING
    default: {
      const one = new RegExp(`^${node.raw}$`, flags.replace(/[gmy]/g, ''))
      automaton.characters.push(new Set(alphabet.filter((character) => one.test(character))))
      automaton.next.push(new Set())
      const state = automaton.characters.length - 1
      return { first: [state], last: [state], isEmpty: false }
    }
  }
}

/** Returns the states that several walks from `from` can reach with one text: the first one stays within `loop`. */
function walk({ characters, next }: Automaton, from: readonly number[], loop: ReadonlySet<number>): Set<string> {
  const seen = new Set<string>()
  const open = [from]
  for (let states = open.pop(); states; states = open.pop()) {
    let steps: { readonly to: readonly number[]; readonly shared: readonly string[] | undefined }[] = [
      { to: [], shared: undefined },
    ]
    for (const state of states)
      steps = steps.flatMap(({ to, shared }) =>
        [...(next[state] ?? [])].flatMap((step) => {
          if (to.length === 0 && !loop.has(step)) return []
          const both = (shared ?? [...(characters[step] ?? [])]).filter((one) => characters[step]?.has(one))
          return both.length > 0 ? [{ to: [...to, step], shared: both }] : []
        }),
      )
    for (const { to } of steps) {
      const key = to.join(' ')
      if (seen.has(key)) continue
      seen.add(key)
      open.push(to)
    }
  }
  return seen
}

/** Returns whether an expression can read one text from many starts, or in many ways, before it gives up. */
export function readsAgain({ source, flags }: { readonly source: string; readonly flags: string }): boolean {
  const pattern = new RegExpParser().parsePattern(source, 0, source.length, { unicode: flags.includes('u') })
  const alphabet = [...new Set([...OTHERS, ...source.replace(/\\[bdDsSwWnrt]/g, '')])]
  const automaton: Automaton = { characters: [new Set(alphabet)], next: [new Set()] }
  const whole = partOf(automaton, pattern, flags, alphabet)
  const isAnchored =
    flags.includes('y') ||
    (!flags.includes('m') &&
      pattern.alternatives.every(({ elements: [first] }) => first?.type === 'Assertion' && first.kind === 'start'))
  for (const state of whole.first) automaton.next[BEFORE]?.add(state)
  if (!isAnchored) automaton.next[BEFORE]?.add(BEFORE)
  // A repetition that may end the expression has matched as much as it has read.
  const { next } = automaton
  const reachedFrom = next.map((direct) => {
    const reached = new Set(direct)
    for (const state of reached) for (const one of next[state] ?? []) reached.add(one)
    return reached
  })
  const loops = [...next.keys()].filter((state) => reachedFrom[state]?.has(state))
  const loopOf = (state: number) =>
    new Set(loops.filter((one) => reachedFrom[state]?.has(one) && reachedFrom[one]?.has(state)))
  const mayEnd = new Set(whole.last.flatMap((state) => [...loopOf(state)]))
  for (const one of loops) {
    const loop = loopOf(one)
    const reached = walk(automaton, [one, one], loop)
    for (const other of loops) {
      if (one === other || other === BEFORE || mayEnd.has(other) || !reached.has(`${one} ${other}`)) continue
      if (walk(automaton, [one, one, other], loop).has(`${one} ${other} ${other}`)) return true
    }
  }
  return false
}
