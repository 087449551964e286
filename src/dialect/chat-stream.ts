/** Streamed Chat Completions responses as the last of a run: tool calls out, terminal state in. */
import { isRealAnswer, mayStillBeMarkup } from '../core/answer.ts'
import { dataFrame, dataOf, type Frame, isWhole, terminated, withData } from '../sse/frames.ts'
import {
  addedText,
  envelopeOf,
  finishes,
  saysNothing,
  saysRole,
  withDeltas,
  withoutRole,
} from './chat-chunk.ts'
import { choicesOf, DONE, finishWithoutCalls, isCutOff, saysFailure, withoutCalls } from './chat-shape.ts'
import type { AnswerStream } from './dialect.ts'
import { addUsage, isObject, type Json, parseObject } from './shape.ts'

/** The chunk without what it calls; the very same object when it calls nothing. */
function withoutChunkCalls(chunk: Json): Json {
  let changed = false
  const choices = choicesOf(chunk).map((choice) => {
    const delta = isObject(choice['delta']) ? choice['delta'] : {}
    const reason = finishWithoutCalls(choice['finish_reason'])
    const calls = 'tool_calls' in delta || 'function_call' in delta
    if (!calls && reason === choice['finish_reason']) return choice
    changed = true
    return { ...choice, delta: withoutCalls(delta), finish_reason: reason }
  })
  return changed ? { ...chunk, choices } : chunk
}

/** What a client has got already of a response whose end is still to come. */
export interface Begun {
  readonly envelope: Json | undefined
  /** Of the upstream responses it came from. */
  readonly usage: unknown
  readonly text: string
  /** The client was told whose message it is. */
  readonly hasRole: boolean
}

/**
 * A response goes to the client as it comes, with two exceptions: text is held while it may still turn out to be
 * reasoning or a written-out tool call, and the end (everything from the first finish reason on) is held until it
 * is known whether there was an answer. What a provider says of a failure goes as it came, and so does all after it.
 * Without `dropCalls` no text is held and nothing is taken out.
 */
export function openChatStream(dropCalls: boolean, isJson: boolean, begun?: Begun): AnswerStream {
  let envelope = begun?.envelope
  /** Upstream responses that are over, and the number of the one whose frames came last. */
  let tries = begun ? 1 : 0
  let current = tries
  let showing = !dropCalls
  let hasRole = begun?.hasRole === true
  let shown = ''
  let held: Buffer[] = []
  let heldText = ''
  let ending: { readonly frame: Frame; readonly chunk: Json }[] = []
  /** Of the tries that are over, and of the current one: providers may repeat it, growing, in every chunk. */
  let spent = begun?.usage
  let usage: unknown
  let done: Buffer | undefined
  let hasSaid = false
  let hasFailed = false

  const bytesOf = (frame: Frame, original: Json, chunk: Json): Buffer => {
    const isRenamed = current > 0 && Array.isArray(chunk['choices'])
    const said = isRenamed && hasRole ? withDeltas(chunk, withoutRole) : chunk
    hasRole ||= saysRole(chunk)
    if (!isRenamed && chunk === original) return terminated(frame)
    return withData(frame, JSON.stringify(isRenamed ? { ...said, ...envelope } : chunk))
  }

  const dropHeld = () => {
    held = []
    heldText = ''
  }

  /** Stands before the first text where there was some before: a paragraph of its own. */
  const separator = (): Buffer[] =>
    begun?.text && shown === ''
      ? [own({ choices: [{ index: 0, delta: { content: '\n\n' }, finish_reason: null }] })]
      : []

  const release = (): Buffer[] => {
    const bytes = heldText === '' ? held : [...separator(), ...held]
    shown += heldText
    hasSaid ||= bytes.length > 0
    dropHeld()
    return bytes
  }

  const show = (frame: Frame, original: Json): Buffer[] => {
    const chunk = dropCalls ? withoutChunkCalls(original) : original
    if (chunk !== original && saysNothing(chunk)) return []
    const text = addedText(chunk)
    const bytes = bytesOf(frame, original, chunk)
    if (showing || text === '') {
      const before = text === '' ? [] : separator()
      shown += text
      hasSaid ||= !saysNothing(withDeltas(chunk, withoutRole))
      return [...before, bytes]
    }
    held.push(bytes)
    heldText += text
    showing = !mayStillBeMarkup(heldText, isJson)
    return showing ? release() : []
  }

  const own = (fields: Json): Buffer =>
    dataFrame(JSON.stringify({ object: 'chat.completion.chunk', ...envelope, ...fields }))

  const ownFinish = (metadata: unknown): Buffer =>
    own({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }], governor: metadata })

  /** The end of a response that gave no answer: `fallback`, a finish reason of the API's own, usage where it was asked for. */
  const ownEnding = (fallback: string, metadata: unknown): Buffer[] => [
    own({ choices: [{ index: 0, delta: { role: 'assistant', content: fallback }, finish_reason: null }] }),
    ownFinish(metadata),
    ...(isObject(spent) ? [own({ choices: [], usage: spent })] : []),
  ]

  const providersEnding = (metadata: unknown): Buffer[] => {
    const last = ending.findLast(({ chunk }) => finishes(chunk))
    // Some providers end without a reason. The client is owed one, and what it says about the run.
    if (!last) return dropCalls ? [ownFinish(metadata)] : []
    return ending.map((entry) => {
      const kept = dropCalls ? withoutChunkCalls(entry.chunk) : entry.chunk
      const summed = tries > 1 && isObject(kept['usage']) ? { ...kept, usage: spent } : kept
      return bytesOf(entry.frame, entry.chunk, entry === last ? { ...summed, governor: metadata } : summed)
    })
  }

  /** All that is held of a response that failed. */
  const flush = (): Buffer[] => {
    const rest = ending.map(({ frame }) => terminated(frame))
    ending = []
    return [...release(), ...rest]
  }

  return {
    get hasBegun() {
      return envelope !== undefined
    },
    get hasFailed() {
      return hasFailed
    },
    get hasSaid() {
      return hasSaid
    },
    abandon: flush,
    get text() {
      return begun?.text ? [begun.text, shown].filter((text) => text !== '').join('\n\n') : shown
    },
    push(frame) {
      current = tries
      const data = dataOf(frame)
      if (data?.trim() === DONE) {
        done = terminated(frame)
        return hasFailed ? [done] : []
      }
      const chunk = data === undefined ? undefined : parseObject(data)
      // What broke off says nothing, and would spoil what comes after it.
      if (!chunk && dropCalls && !isWhole(frame)) return []
      if (!chunk) {
        hasSaid = true
        return [frame.raw]
      }
      // Errors, and Azure's first chunk with the verdict on the prompt, hold no choice and no name worth having.
      if (choicesOf(chunk).length > 0) envelope ??= envelopeOf(chunk)
      if (isObject(chunk['usage'])) usage = chunk['usage']
      hasFailed ||= saysFailure(chunk)
      if (hasFailed) return [...flush(), terminated(frame)]
      if (ending.length === 0 && !finishes(chunk)) return show(frame, chunk)
      ending.push({ frame, chunk })
      return []
    },
    endTry() {
      const answered = isRealAnswer(
        shown + heldText + ending.map(({ chunk }) => addedText(chunk)).join(''),
        isJson,
      )
      tries++
      spent = addUsage(spent, usage)
      usage = undefined
      if (hasFailed || !(done || ending.some(({ chunk }) => finishes(chunk)))) return 'broken'
      if (!answered && dropCalls) {
        dropHeld()
        ending = []
        done = undefined
      }
      return answered ? 'answered' : 'silent'
    },
    finish(terminalFor, fallback) {
      const endText = ending.map(({ chunk }) => addedText(chunk)).join('')
      const out = release()
      const answered = isRealAnswer(shown + endText, isJson)
      const metadata = terminalFor(
        answered,
        ending.some(({ chunk }) => isCutOff(chunk)),
      )
      if (endText !== '' || (!answered && fallback !== undefined)) out.push(...separator())
      shown += endText
      if (answered || fallback === undefined) out.push(...providersEnding(metadata))
      else out.push(...ownEnding(fallback, metadata))
      if (!answered && fallback !== undefined) shown = fallback
      if (done) out.push(done)
      else if (dropCalls) out.push(dataFrame(DONE))
      return out
    },
  }
}
