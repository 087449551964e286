/** Chat Completions responses whose calls are held until it is known which of them the client gets. */
import { dataFrame, dataOf, type Frame, terminated, withData } from '../sse/frames.ts'
import { callsOf } from './chat-calls.ts'
import { addedText, envelopeOf, finishes, saysNothing } from './chat-chunk.ts'
import { choicesOf, contentText, DONE, withoutCalls } from './chat-shape.ts'
import { openChatStream } from './chat-stream.ts'
import type { CallGate, HeldCalls, RefusedRound } from './dialect.ts'
import { addUsage, isObject, type Json, parseObject } from './shape.ts'

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

/** What is left of a list of calls. */
function keptCalls(calls: unknown, refused: ReadonlySet<number>): unknown[] {
  return Array.isArray(calls) ? calls.filter((_, at) => !refused.has(at)) : []
}

export function withoutChatCalls(
  body: Buffer,
  refused: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [answer = {}, ...before] = [body, ...earlier].map((one) => parseObject(one.toString('utf8')) ?? {})
  const usage = [...before, answer].map((one) => one['usage']).filter(isObject)
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
  const summed = usage.length > 0 ? { usage: usage.reduce<unknown>(addUsage, undefined) } : {}
  return Buffer.from(JSON.stringify({ ...answer, choices, ...summed }))
}

/** The messages that stand after a refused round: what the model said, and what became of each call. */
export function roundMessages({ held, results }: RefusedRound): Json[] {
  const message = isObject(held.message) ? held.message : {}
  const isOldKind = !Array.isArray(message['tool_calls'])
  return [
    message,
    ...held.calls.map(({ id, name }, at) =>
      isOldKind
        ? { role: 'function', name, content: results[at] ?? '' }
        : { role: 'tool', tool_call_id: id, content: results[at] ?? '' },
    ),
  ]
}

/** Puts a piece of a streamed value onto what came of it before. */
function grown(before: unknown, piece: unknown): unknown {
  if (piece === null || piece === undefined) return before ?? piece
  if (typeof before === 'string' && typeof piece === 'string') return before + piece
  if (Array.isArray(before) && Array.isArray(piece)) return [...before, ...piece]
  return piece
}

/** Fields that are said again in every piece, or once. */
const WHOLE = new Set(['id', 'type', 'role', 'index'])

function grow(target: Map<string, unknown>, piece: Json, except: readonly string[]): void {
  for (const [key, value] of Object.entries(piece)) {
    if (except.includes(key)) continue
    target.set(key, WHOLE.has(key) ? (value ?? target.get(key)) : grown(target.get(key), value))
  }
}

/** A message put together from the deltas of a stream. */
function createAssembly() {
  const message = new Map<string, unknown>([['role', 'assistant']])
  const calls = new Map<number, { call: Map<string, unknown>; called: Map<string, unknown>; kind: string }>()
  const single = new Map<string, unknown>()
  const callAt = (index: number) => {
    const known = calls.get(index)
    if (known) return known
    const added = { call: new Map(), called: new Map(), kind: 'function' }
    calls.set(index, added)
    return added
  }
  return {
    add(delta: Json): void {
      grow(message, delta, ['tool_calls', 'function_call'])
      if (isObject(delta['function_call'])) grow(single, delta['function_call'], [])
      const listed = Array.isArray(delta['tool_calls']) ? delta['tool_calls'].filter(isObject) : []
      for (const piece of listed) {
        const entry = callAt(typeof piece['index'] === 'number' ? piece['index'] : 0)
        if (isObject(piece['custom'])) entry.kind = 'custom'
        grow(entry.call, piece, ['index', 'function', 'custom'])
        const called = piece[entry.kind]
        if (isObject(called)) grow(entry.called, called, [])
      }
    },
    /** Indexes of the calls, in the order in which `message` lists them. */
    get indexes(): number[] {
      return [...calls.keys()]
    },
    get message(): Json {
      const listed = [...calls.values()].map(({ call, called, kind }) => ({
        ...Object.fromEntries(call),
        [kind]: Object.fromEntries(called),
      }))
      return {
        content: null,
        ...Object.fromEntries(message),
        ...(listed.length > 0 ? { tool_calls: listed } : {}),
        ...(single.size > 0 ? { function_call: Object.fromEntries(single) } : {}),
      }
    },
  }
}

/** One upstream response, as far as it is not with the client. */
interface Try {
  readonly assembly: ReturnType<typeof createAssembly>
  held: { readonly frame: Frame; readonly chunk: Json | undefined }[]
  usage: unknown
  done: Buffer | undefined
}

const newTry = (): Try => ({ assembly: createAssembly(), held: [], usage: undefined, done: undefined })

export function openChatGate(): CallGate {
  let envelope: Json | undefined
  let current = newTry()
  let ended: Try | undefined
  let tries = 0
  /** Usage of the responses before the current one. */
  let spent: unknown
  let shown = ''
  let hasShown = false
  /** What the first response begins with before it says anything. */
  let opening: Buffer[] = []
  /** Several choices side by side are none of the gate's business. */
  let isOpen = false

  const opened = (): Buffer[] => {
    const bytes = opening
    opening = []
    return bytes
  }

  const renamed = (frame: Frame, chunk: Json): Buffer =>
    withData(frame, JSON.stringify(Array.isArray(chunk['choices']) ? { ...chunk, ...envelope } : chunk))

  const separator = (): Buffer =>
    dataFrame(
      JSON.stringify({
        ...envelope,
        choices: [{ index: 0, delta: { content: '\n\n' }, finish_reason: null }],
      }),
    )

  /** Shows a chunk without calls. What a later response begins with goes without saying. */
  const show = (frame: Frame, chunk: Json): Buffer[] => {
    const isEmpty = saysNothing({ ...chunk, choices: choicesOf(chunk).map(withoutRole) })
    if (tries === 0) {
      shown += addedText(chunk)
      opening.push(frame.raw)
      return isEmpty && shown === '' ? [] : opened()
    }
    if (isEmpty) return []
    const text = addedText(chunk)
    const isSecondText = !hasShown && text !== '' && shown !== ''
    if (text !== '') hasShown = true
    shown += isSecondText ? `\n\n${text}` : text
    return [...opened(), ...(isSecondText ? [separator()] : []), renamed(frame, chunk)]
  }

  const keptChunk = (chunk: Json, refused: ReadonlySet<number>, indexes: readonly number[]): Json => {
    const places = new Map(indexes.filter((_, at) => !refused.has(at)).map((index, at) => [index, at]))
    const choices = choicesOf(chunk).map((choice) => {
      const delta = isObject(choice['delta']) ? choice['delta'] : {}
      if (!Array.isArray(delta['tool_calls'])) return choice
      const calls = delta['tool_calls'].filter(isObject).flatMap((call) => {
        const place = places.get(typeof call['index'] === 'number' ? call['index'] : 0)
        return place === undefined ? [] : [{ ...call, index: place }]
      })
      const { tool_calls: _calls, ...rest } = delta
      return { ...choice, delta: calls.length > 0 ? { ...rest, tool_calls: calls } : rest }
    })
    return { ...chunk, choices }
  }

  return {
    push(frame) {
      const data = dataOf(frame)
      if (data?.trim() === DONE) {
        current.done = terminated(frame)
        return []
      }
      const chunk = data === undefined ? undefined : parseObject(data)
      // A comment, or what is no chunk: it keeps its place.
      if (!chunk || isOpen) {
        if (current.held.length === 0) return [...opened(), frame.raw]
        current.held.push({ frame, chunk })
        return []
      }
      const choices = choicesOf(chunk)
      if (choices.length > 0) envelope ??= envelopeOf(chunk)
      if (isObject(chunk['usage'])) current.usage = chunk['usage']
      if (tries === 0 && choices.some((choice) => (choice['index'] ?? 0) !== 0)) {
        isOpen = true
        const held = current.held.map((one) => one.frame.raw)
        current.held = []
        return [...opened(), ...held, frame.raw]
      }
      for (const { delta } of choices) if (isObject(delta)) current.assembly.add(delta)
      const calls = choices.some(
        ({ delta }) => isObject(delta) && ('tool_calls' in delta || 'function_call' in delta),
      )
      if (!calls && !finishes(chunk) && current.held.length === 0) return show(frame, chunk)
      current.held.push({ frame, chunk })
      return []
    },
    endTry() {
      if (ended) spent = addUsage(spent, ended.usage)
      ended = current
      current = newTry()
      tries++
      hasShown = false
      return isOpen ? undefined : heldOf(ended.assembly.message)
    },
    release(refused) {
      if (!ended) return []
      const { held, assembly, usage, done } = ended
      const isFirst = tries === 1
      const indexes = assembly.indexes
      const total = addUsage(spent, usage)
      const out = held.flatMap(({ frame, chunk }) => {
        if (!chunk || (isFirst && refused.size === 0)) return [terminated(frame)]
        const kept = refused.size > 0 ? keptChunk(chunk, refused, indexes) : chunk
        if (refused.size > 0 && saysNothing(kept)) return []
        const summed = !isFirst && isObject(kept['usage']) ? { ...kept, usage: total } : kept
        return [isFirst ? withData(frame, JSON.stringify(summed)) : renamed(frame, summed)]
      })
      return [...opened(), ...out, ...(done ? [done] : [])]
    },
    toAnswer() {
      const total = addUsage(spent, ended?.usage)
      return [opened(), openChatStream(true, { envelope, usage: total, text: shown })]
    },
  }
}

function withoutRole(choice: Json): Json {
  const { role: _role, ...delta } = isObject(choice['delta']) ? choice['delta'] : {}
  return { ...choice, delta }
}
