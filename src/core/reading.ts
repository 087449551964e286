/**
 * What the first messages of a conversation tell, as a fold: from any reading one can go on with the next message, so
 * that an agent that sends everything again is read only where it goes on.
 */
import type { Conversation } from './conversation.ts'
import { type Hash, hashOf } from './hash.ts'
import { humanText, type ScaffoldRegistry } from './scaffolding.ts'

export interface Reading {
  /** How many messages were read. */
  readonly length: number
  readonly system: Hash
  /** Every human message, in order. */
  readonly humans: readonly Hash[]
  /** What a human said first, in words. */
  readonly asked: Hash | undefined
  /** System text, first human words and first assistant message: what the conversation began with. */
  readonly beginning: Hash | undefined
  /** Assistant messages since the last human message. */
  readonly steps: number
  /** Tool calls since the last human message. */
  readonly toolCalls: number
  /** Tool calls of the newest assistant message since the last human one. */
  readonly newToolCalls: number
  /** The last message read is a human's. */
  readonly endsInHuman: boolean
  readonly hasResults: boolean
  /** The indexes of the first and the newest assistant messages. */
  readonly assistants: readonly number[]
  /** Hashes of assistant messages by index, as far as they were needed. */
  readonly hashes: Map<number, Hash>
}

/** How many of the newest assistant messages identify a thread. */
const ANCESTRY = 8

/** The hash of the assistant message at `index`, computed once for all who go on from the same reading. */
function assistantHash(conversation: Conversation, index: number, hashes: Map<number, Hash>): Hash {
  const known = hashes.get(index)
  if (known !== undefined) return known
  const calls = conversation.calls(index).flatMap((call) => [call.id, call.name, call.arguments])
  const hash = hashOf(...conversation.texts(index), ...calls)
  hashes.set(index, hash)
  return hash
}

/** A message without any text, a picture say: a person's, unless it follows what a tool gave and shows that. */
function isPersonsPicture(conversation: Conversation, index: number): boolean {
  return conversation.texts(index).length === 0 && (index === 0 || conversation.resultCount(index - 1) === 0)
}

/**
 * What a human said in a message, which may be a picture without words, or words beside what tools gave; `undefined` where
 * it is none of a human.
 */
export function humanWords(
  conversation: Conversation,
  index: number,
  registry: ScaffoldRegistry,
): string | undefined {
  if (conversation.role(index) !== 'user') return undefined
  const said = humanText(conversation.texts(index), registry)
  if (said !== '') return said
  return conversation.resultCount(index) === 0 && isPersonsPicture(conversation, index) ? '' : undefined
}

/** The first and the newest of the assistant messages. */
function kept(assistants: readonly number[]): readonly number[] {
  return assistants.length <= ANCESTRY + 1
    ? assistants
    : [...assistants.slice(0, 1), ...assistants.slice(-ANCESTRY)]
}

/** A reading of no message yet. */
export function nothingRead(conversation: Conversation): Reading {
  return {
    length: 0,
    system: hashOf(conversation.systemText()),
    humans: [],
    asked: undefined,
    beginning: undefined,
    steps: 0,
    toolCalls: 0,
    newToolCalls: 0,
    endsInHuman: false,
    hasResults: false,
    assistants: [],
    hashes: new Map(),
  }
}

/** Goes on from a reading of a conversation's first messages to that of its first `length`. */
export function readOn(
  from: Reading,
  conversation: Conversation,
  length: number,
  registry: ScaffoldRegistry,
): Reading {
  if (length <= from.length) return from
  let { asked, beginning, steps, toolCalls, newToolCalls, endsInHuman, hasResults } = from
  const humans = [...from.humans]
  const assistants = [...from.assistants]
  for (let index = from.length; index < length; index++) {
    endsInHuman = false
    const role = conversation.role(index)
    if (role === 'assistant') {
      beginning ??= hashOf(from.system, asked ?? '', assistantHash(conversation, index, from.hashes))
      assistants.push(index)
      steps++
      newToolCalls = conversation.callCount(index)
      toolCalls += newToolCalls
      continue
    }
    if (conversation.resultCount(index) > 0) hasResults = true
    const said = humanWords(conversation, index, registry)
    if (said === undefined) continue
    const human = hashOf(said)
    humans.push(human)
    if (said !== '') asked ??= human
    steps = 0
    toolCalls = 0
    newToolCalls = 0
    endsInHuman = true
  }
  return {
    ...from,
    length,
    humans,
    asked,
    beginning,
    steps,
    toolCalls,
    newToolCalls,
    endsInHuman,
    hasResults,
    assistants: kept(assistants),
  }
}

/** A reading for another conversation that begins with the same messages. */
export function recalled(reading: Reading): Reading {
  const own = [...reading.hashes].filter(([index]) => reading.assistants.includes(index))
  return { ...reading, hashes: new Map(own) }
}

/** The first and the newest assistant messages of what was read, in order. */
export function stepsOf(
  reading: Reading,
  conversation: Conversation,
): readonly { readonly index: number; readonly hash: Hash }[] {
  return reading.assistants.map((index) => ({
    index,
    hash: assistantHash(conversation, index, reading.hashes),
  }))
}

/** The first and the newest assistant messages of what was read: a transcript that holds one continues the same thread. */
export function ancestryOf(reading: Reading, conversation: Conversation): readonly Hash[] {
  return reading.assistants.map((index) => assistantHash(conversation, index, reading.hashes))
}
