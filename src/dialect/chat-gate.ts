/** Chat Completions responses whose calls are held until it is known which of them the client gets. */
import { dataFrame, dataOf, type Frame, terminated, withData } from '../sse/frames.ts'
import { callPieces, callsIn, createAssembly } from './chat-assembly.ts'
import { argumentsOf, callsOf } from './chat-calls.ts'
import {
  addedText,
  deltaOf,
  envelopeOf,
  finishes,
  saysNothing,
  saysRole,
  withDeltas,
  withoutRole,
} from './chat-chunk.ts'
import { choicesOf, contentText, DONE, withoutCalls } from './chat-shape.ts'
import { openChatStream } from './chat-stream.ts'
import type { CallGate, HeldCalls, RefusedRound } from './dialect.ts'
import { addUsage, isObject, type Json, objectsIn, parseObject, summedUsage } from './shape.ts'

function heldOf(message: Json): HeldCalls {
  return { calls: callsOf(message), text: contentText(message['content']), message }
}

export function readChatCalls(body: Buffer): HeldCalls | undefined {
  const answer = parseObject(body.toString('utf8'))
  const choices = answer ? choicesOf(answer) : []
  const message = choices[0]?.['message']
  return choices.length === 1 && isObject(message) ? heldOf(message) : undefined
}

/** The texts of responses that the client sees as one. */
function joined(texts: readonly string[]): string {
  return texts.filter((text) => text !== '').join('\n\n')
}

/** What is left of a list of calls, by their place among those that can be read. */
function keptCalls(calls: unknown, refused: ReadonlySet<number>): unknown[] {
  let place = 0
  const isKept = (call: unknown) => callsOf({ tool_calls: [call] }).length === 0 || !refused.has(place++)
  return Array.isArray(calls) ? calls.filter(isKept) : []
}

export function withoutChatCalls(
  body: Buffer,
  refused: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [answer = {}, ...before] = objectsIn([body, ...earlier])
  const textBefore = joined(
    before.map((one) => {
      const message = choicesOf(one)[0]?.['message']
      return isObject(message) ? contentText(message['content']) : ''
    }),
  )
  const choices = choicesOf(answer).map((choice) => {
    const message = isObject(choice['message']) ? choice['message'] : {}
    const calls = keptCalls(message['tool_calls'], refused)
    const content =
      textBefore === '' ? {} : { content: joined([textBefore, contentText(message['content'])]) }
    const kept = calls.length > 0 ? { ...message, tool_calls: calls } : withoutCalls(message)
    return { ...choice, message: { ...(refused.size > 0 ? kept : message), ...content } }
  })
  return Buffer.from(JSON.stringify({ ...answer, choices, ...summedUsage(before, answer) }))
}

/** A call as providers take it in the input, where its arguments are to be JSON. */
function sentBack(call: unknown): unknown {
  if (!isObject(call) || !isObject(call['function'])) return call
  const { arguments: text } = call['function']
  return argumentsOf(text).trim() === ''
    ? { ...call, function: { ...call['function'], arguments: '{}' } }
    : call
}

/** What the API takes in an assistant message; providers say more than that, and not all take it back. */
const OWN_FIELDS = new Set(['role', 'content', 'refusal', 'name', 'audio', 'tool_calls', 'function_call'])

/** A message as it is sent back; `isBare`: without what is not the API's own. */
function messageOf({ held }: RefusedRound, isBare: boolean): Json {
  const message = isObject(held.message) ? held.message : {}
  if (!isBare) return message
  return Object.fromEntries(Object.entries(message).filter(([key]) => OWN_FIELDS.has(key)))
}

/** The messages that stand after a refused round: what the model said, and what became of each call. */
export function roundMessages(round: RefusedRound, isBare: boolean): Json[] {
  const { held, results } = round
  const message = messageOf(round, isBare)
  const { tool_calls: listed, ...others } = message
  const calls = Array.isArray(listed) ? listed : []
  const isOldKind = calls.length === 0
  return [
    isOldKind ? others : { ...others, tool_calls: calls.map(sentBack) },
    ...held.calls.map(({ id, name }, at) =>
      isOldKind
        ? { role: 'function', name, content: results[at] ?? '' }
        : { role: 'tool', tool_call_id: id, content: results[at] ?? '' },
    ),
  ]
}

/** A frame that is held, and the places of the calls in it. */
interface HeldFrame {
  readonly frame: Frame
  readonly chunk?: Json
  readonly places: readonly number[]
}

/** One upstream response, as far as it is not with the client. */
interface Try {
  readonly assembly: ReturnType<typeof createAssembly>
  held: HeldFrame[]
  usage: unknown
  /** It has said something, and not that it failed. */
  hasChoices: boolean
  hasFailed: boolean
  /** What is held of it besides calls went to the client; `undefined` while nobody has looked. */
  isSaid: boolean | undefined
}

const newTry = (): Try => ({
  assembly: createAssembly(),
  held: [],
  usage: undefined,
  hasChoices: false,
  hasFailed: false,
  isSaid: undefined,
})

/** What a chunk says besides calling something; neither its end nor its usage is in it. */
function besideCalls({ usage: _usage, ...chunk }: Json): Json {
  const choices = choicesOf(chunk).map((choice) => ({
    ...choice,
    delta: withoutRole(withoutCalls(deltaOf(choice))),
    finish_reason: null,
  }))
  return { ...chunk, choices }
}

/** The chunk with only what it calls, and its end. */
function onlyCalls(chunk: Json): Json {
  return withDeltas(chunk, ({ tool_calls: calls, function_call: call }) => ({
    ...(calls === undefined ? {} : { tool_calls: calls }),
    ...(call === undefined ? {} : { function_call: call }),
  }))
}

/** The chunk without the calls in `refused`; those that are left are numbered from nought. */
function keptChunk(chunk: Json, places: readonly number[], refused: ReadonlySet<number>): Json {
  return withDeltas(chunk, (delta) => {
    if (!Array.isArray(delta['tool_calls'])) return delta
    const { tool_calls: _calls, ...rest } = delta
    const kept = callPieces(delta).flatMap((piece, at) => {
      const place = places[at] ?? 0
      if (refused.has(place)) return []
      return [{ ...piece, index: place - [...refused].filter((other) => other < place).length }]
    })
    return kept.length > 0 ? { ...rest, tool_calls: kept } : rest
  })
}

export function openChatGate(): CallGate {
  let envelope: Json | undefined
  let current = newTry()
  let ended: Try | undefined
  let tries = 0
  /** Usage of the responses before the one that ended last. */
  let spent: unknown
  let shown = ''
  /** The newest response has shown some text of its own. */
  let hasShown = false
  /** The client was told whose message it is. */
  let hasRole = false
  /** What the first response begins with before it says anything. */
  let opening: Buffer[] = []
  /** Several choices side by side are none of the gate's business. */
  let isOpen = false

  const opened = (): Buffer[] => {
    const bytes = opening
    opening = []
    return bytes
  }

  /** A chunk of a later response as one of the first: the role is said once. */
  const renamed = (frame: Frame, chunk: Json): Buffer => {
    if (!Array.isArray(chunk['choices'])) return withData(frame, JSON.stringify(chunk))
    const role = hasRole ? {} : { role: 'assistant' }
    hasRole ||= chunk['choices'].length > 0
    const told = withDeltas(chunk, (delta) => ({ ...role, ...withoutRole(delta) }))
    return withData(frame, JSON.stringify({ ...told, ...envelope }))
  }

  const separator = (): Buffer =>
    dataFrame(
      JSON.stringify({
        ...envelope,
        choices: [{ index: 0, delta: { content: '\n\n' }, finish_reason: null }],
      }),
    )

  /** Shows what a later response says, in the first one's name. */
  const showLater = (frame: Frame, chunk: Json): Buffer[] => {
    const text = addedText(chunk)
    const isSecondText = !hasShown && text !== '' && shown !== ''
    if (text !== '') hasShown = true
    shown += isSecondText ? `\n\n${text}` : text
    return [...opened(), ...(isSecondText ? [separator()] : []), renamed(frame, chunk)]
  }

  /** Shows a chunk without calls. What a later response begins with goes without saying. */
  const show = (frame: Frame, chunk: Json): Buffer[] => {
    const choices = choicesOf(withDeltas(chunk, withoutRole))
    const isEmpty = !chunk['error'] && saysNothing(choices.length > 0 ? { choices } : chunk)
    if (tries > 0) return isEmpty ? [] : showLater(frame, chunk)
    shown += addedText(chunk)
    hasRole ||= saysRole(chunk)
    opening.push(frame.raw)
    return isEmpty && shown === '' ? [] : opened()
  }

  /** What the response that ended last said with its calls, or after them, and is to be seen though they are not. */
  const saidBeside = (): Buffer[] => {
    if (!ended || ended.isSaid !== undefined || isOpen) return []
    hasShown = tries === 1 || hasShown
    const out = ended.held.flatMap(({ frame, chunk }) => {
      const said = chunk && besideCalls(chunk)
      return said && choicesOf(said).length > 0 && !saysNothing(said) ? showLater(frame, said) : []
    })
    hasShown = false
    ended.isSaid = out.length > 0
    return out
  }

  const take = (frame: Frame): Buffer[] => {
    const data = dataOf(frame)
    const isDone = data?.trim() === DONE
    const chunk = data === undefined || isDone ? undefined : parseObject(data)
    if (!chunk || isOpen) {
      // A comment, or what is no chunk: it keeps its place. The end is held.
      if ((!isDone || isOpen) && current.held.length === 0) return [...opened(), frame.raw]
      current.held.push({ frame, places: [] })
      return []
    }
    const choices = choicesOf(chunk)
    if (choices.length > 0) envelope ??= envelopeOf(chunk)
    if (isObject(chunk['usage'])) current.usage = chunk['usage']
    current.hasChoices ||= choices.length > 0
    current.hasFailed ||= Boolean(chunk['error'])
    if (tries > 0 && current.hasFailed) return []
    if (tries === 0 && choices.some((choice) => (choice['index'] ?? 0) !== 0)) {
      isOpen = true
      const held = current.held.map((one) => one.frame.raw)
      current.held = []
      return [...opened(), ...held, frame.raw]
    }
    const deltas = choices.map(deltaOf)
    const places = deltas.flatMap((delta) => current.assembly.add(delta))
    if (!deltas.some(callsIn) && !finishes(chunk) && current.held.length === 0) return show(frame, chunk)
    current.held.push({ frame, chunk, places })
    return []
  }

  return {
    push(frame) {
      return [...saidBeside(), ...take(frame)]
    },
    endTry() {
      const next = current
      current = newTry()
      // The one before it is what there is.
      if (tries > 0 && (next.hasFailed || !next.hasChoices)) return undefined
      if (ended) spent = addUsage(spent, ended.usage)
      ended = next
      tries++
      return isOpen ? undefined : heldOf(ended.assembly.message)
    },
    release(refused) {
      if (!ended) return []
      const { held, usage, isSaid } = ended
      const isFirst = tries === 1
      if (isFirst && refused.size === 0 && !isSaid)
        return [...opened(), ...held.map(({ frame }) => frame.raw)]
      const total = addUsage(spent, usage)
      const out = held.flatMap(({ frame, chunk, places }) => {
        if (!chunk) return [terminated(frame)]
        const left = isSaid ? onlyCalls(chunk) : chunk
        const kept = refused.size > 0 ? keptChunk(left, places, refused) : left
        if ((refused.size > 0 || isSaid) && saysNothing(kept)) return []
        const summed = !isFirst && isObject(kept['usage']) ? { ...kept, usage: total } : kept
        return [isFirst ? withData(frame, JSON.stringify(summed)) : renamed(frame, summed)]
      })
      return [...opened(), ...out]
    },
    toAnswer(isJson) {
      const said = saidBeside()
      const total = addUsage(spent, ended?.usage)
      return [
        [...opened(), ...said],
        openChatStream(true, isJson, { envelope, usage: total, text: shown, hasRole }),
      ]
    },
  }
}
