/**
 * What the first messages of a conversation tell, as a fold: from any reading one can go on with the next message, so
 * that an agent that sends everything again is read only where it goes on.
 */
import type { Conversation } from '../conversation.ts'
import { humanText, type ScaffoldRegistry } from '../harness/match.ts'
import { WRITTEN_CALLS, WRITTEN_RESULT } from '../harness/texts.ts'
import { type Hash, hashOfText, listed } from '../hash.ts'

/** An assistant message. All readings that go on from one another share it, so that it is hashed once. */
export interface Step {
  readonly index: number
  readonly calls: number
  /** Unset until it is needed. */
  hash: Hash | undefined
}

export interface Reading {
  /** How many messages were read. */
  readonly length: number
  readonly system: Hash
  /** Every human message, in order. */
  readonly humans: readonly Hash[]
  /** What a human said first, in words. */
  readonly asked: Hash | undefined
  /** Names system text, first human words and first assistant message: what the conversation began with. */
  readonly beginning: string | undefined
  /** Assistant messages since the last human message. */
  readonly steps: number
  /** Tool calls since the last human message. */
  readonly toolCalls: number
  /** Tool calls of the newest assistant message since the last human one. */
  readonly newToolCalls: number
  /** The last message read is a human's. */
  readonly endsInHuman: boolean
  /** The first and the newest assistant messages, in order. */
  readonly assistants: readonly Step[]
}

/** How many of the newest assistant messages identify a thread. */
const ANCESTRY = 8

/** Names an assistant message by all that it says and calls. */
export function hashOfStep(step: Step, conversation: Conversation): Hash {
  if (step.hash !== undefined) return step.hash
  let list = ''
  for (const text of conversation.texts(step.index)) list += listed(text)
  for (const call of conversation.calls(step.index))
    list += listed(call.id) + listed(call.name) + listed(call.arguments)
  for (const id of conversation.ranByProvider?.(step.index) ?? []) list += listed(id)
  const hash = hashOfText(list)
  step.hash = hash
  return hash
}

/**
 * Names the first answer of a conversation. One that the provider was to go on with may have grown when it is shown again:
 * what was run for it first stays.
 */
function hashOfFirst(step: Step, conversation: Conversation): Hash {
  const [ran] = conversation.ranByProvider?.(step.index) ?? []
  return ran === undefined ? hashOfStep(step, conversation) : hashOfText(ran)
}

/** A message without any text, a picture say: a person's, unless it follows what a tool gave and shows that. */
function isPersonsPicture(conversation: Conversation, index: number): boolean {
  return conversation.texts(index).length === 0 && (index === 0 || conversation.resultCount(index - 1) === 0)
}

/** Is what was said the result of calls that stand in the text of the message before it? */
function isWrittenResult(said: string, conversation: Conversation, index: number): boolean {
  if (index === 0 || !WRITTEN_RESULT.test(said)) return false
  if (conversation.role(index - 1) !== 'assistant') return false
  return conversation.texts(index - 1).some((text) => WRITTEN_CALLS.test(text))
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
  if (said !== '') return isWrittenResult(said, conversation, index) ? undefined : said
  return conversation.resultCount(index) === 0 && isPersonsPicture(conversation, index) ? '' : undefined
}

/** The first and the newest of the assistant messages. */
function kept(assistants: readonly Step[]): readonly Step[] {
  return assistants.length <= ANCESTRY + 1
    ? assistants
    : [...assistants.slice(0, 1), ...assistants.slice(-ANCESTRY)]
}

/** A reading of no message yet. */
export function nothingRead(conversation: Conversation): Reading {
  return {
    length: 0,
    system: hashOfText(conversation.systemText()),
    humans: [],
    asked: undefined,
    beginning: undefined,
    steps: 0,
    toolCalls: 0,
    newToolCalls: 0,
    endsInHuman: false,
    assistants: [],
  }
}

/** Most readings go on by a message or two: what they add nothing to stays the same list. */
function grown<Item>(known: readonly Item[], added: readonly Item[]): readonly Item[] {
  if (added.length === 0) return known
  return known.length === 0 ? added : [...known, ...added]
}

/**
 * Goes on from a reading of a conversation's first messages to that of its first `length`. `mayPause`: or to that of fewer, where
 * others should have their turn first.
 */
export function readOn(
  from: Reading,
  conversation: Conversation,
  length: number,
  registry: ScaffoldRegistry,
  mayPause = false,
): Reading {
  if (length <= from.length) return from
  let { asked, beginning, steps, toolCalls, newToolCalls, endsInHuman } = from
  const humans: Hash[] = []
  const assistants: Step[] = []
  let index = from.length
  for (; index < length; index++) {
    if (mayPause && index > from.length && conversation.work?.isDue) break
    endsInHuman = false
    const role = conversation.role(index)
    if (role === 'assistant') {
      newToolCalls = conversation.callCount(index)
      const step: Step = { index, calls: newToolCalls, hash: undefined }
      beginning ??= from.system + (asked ?? '') + hashOfFirst(step, conversation)
      assistants.push(step)
      steps++
      toolCalls += newToolCalls
      continue
    }
    const said = humanWords(conversation, index, registry)
    if (said === undefined) continue
    const human = hashOfText(said)
    humans.push(human)
    if (said !== '') asked ??= human
    steps = 0
    toolCalls = 0
    newToolCalls = 0
    endsInHuman = true
  }
  return {
    length: index,
    system: from.system,
    humans: grown(from.humans, humans),
    asked,
    beginning,
    steps,
    toolCalls,
    newToolCalls,
    endsInHuman,
    assistants: kept(grown(from.assistants, assistants)),
  }
}

/** The first and the newest assistant messages of what was read: a transcript that holds one continues the same thread. */
export function ancestryOf(reading: Reading, conversation: Conversation): readonly Hash[] {
  return reading.assistants.map((step) => hashOfStep(step, conversation))
}
