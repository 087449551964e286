/** Messages responses whose calls are held until it is known which of them the client gets. */
import { terminated } from '../sse/frames.ts'
import type { CallGate } from './dialect.ts'
import { changed, createBlocks, eventOf, type MessagesEvent } from './messages-events.ts'
import { assembled, createAssembly } from './messages-held.ts'
import { contentOf, isCall, laterUsage, memberText, stopWithoutCalls, withMembers } from './messages-shape.ts'
import { openMessagesStream } from './messages-stream.ts'
import { addUsage, isObject, type Json, objectsIn, summedUsage, textOf } from './shape.ts'

/** Content without the calls in `refused`, by their place among the calls. */
function keptContent(content: readonly Json[], refused: ReadonlySet<number>): Json[] {
  let call = 0
  return content.filter((block) => !isCall(block) || !refused.has(call++))
}

export function withoutMessageCalls(
  body: Buffer,
  refused: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [answer = {}, ...before] = objectsIn([body, ...earlier])
  const kept = keptContent(contentOf(answer), refused)
  const content = [...before.flatMap((one) => contentOf(one).filter((block) => !isCall(block))), ...kept]
  return Buffer.from(
    JSON.stringify({
      ...answer,
      content,
      stop_reason: kept.some(isCall) ? answer['stop_reason'] : stopWithoutCalls(answer['stop_reason']),
      ...summedUsage(before, answer),
    }),
  )
}

const isCallStart = ({ type, content_block: block }: Json): boolean =>
  type === 'content_block_start' && isCall(block)

/** One upstream response, as far as it is not with the client. */
interface Try {
  readonly assembly: ReturnType<typeof createAssembly>
  id: string | undefined
  held: MessagesEvent[]
  usage: unknown
  isOver: boolean
  hasFailed: boolean
}

const newTry = (): Try => ({
  assembly: createAssembly(),
  id: undefined,
  held: [],
  usage: undefined,
  isOver: false,
  hasFailed: false,
})

export function openMessagesGate(): CallGate {
  const blocks = createBlocks()
  let current = newTry()
  let ended: Try | undefined
  let tries = 0
  /** Usage of the responses before the one that ended last. */
  let spent: unknown
  /** What the first response begins with before it says anything. */
  let opening: Buffer[] = []
  let hasOpened = false

  const opened = (): Buffer[] => {
    const bytes = opening
    opening = []
    hasOpened = true
    return bytes
  }

  const show = (entry: MessagesEvent): Buffer[] => {
    const placed = entry.data['index'] === undefined ? entry.frame.raw : blocks.place(entry)
    // What a first response shows is as it came, its end included: it may be all there is.
    const bytes = tries === 0 ? entry.frame.raw : placed
    if (!hasOpened && entry.data['type'] !== 'content_block_delta' && entry.data['type'] !== 'error') {
      opening.push(bytes)
      return []
    }
    return [...opened(), bytes]
  }

  const take = (entry: MessagesEvent): Buffer[] => {
    const { data } = entry
    current.hasFailed ||= tries > 0 && data['type'] === 'error'
    // The response before it is what the client gets.
    if (current.hasFailed) return []
    current.assembly.add(data)
    if (data['type'] === 'message_start') {
      const message = isObject(data['message']) ? data['message'] : {}
      current.id = textOf(message['id'])
      current.usage = message['usage']
      return tries === 0 ? show(entry) : blocks.close()
    }
    if (data['type'] === 'message_delta') current.usage = laterUsage(current.usage, data['usage'])
    const isEnd = data['type'] === 'message_delta' || data['type'] === 'message_stop'
    current.isOver ||= isEnd
    if (current.held.length === 0 && !isEnd && !isCallStart(data)) return show(entry)
    current.held.push(entry)
    return []
  }

  /** The end of a response whose client gets other calls, or more, than it says. */
  const ending = (entry: MessagesEvent, hasCalls: boolean, usage: unknown): Buffer => {
    const { delta } = entry.data
    const reason = isObject(delta) ? delta['stop_reason'] : undefined
    const kept = hasCalls ? reason : stopWithoutCalls(reason)
    const before = memberText(Buffer.from(entry.text), 'delta')
    return changed(entry, {
      ...(kept === reason || before === undefined
        ? {}
        : { delta: withMembers(Buffer.from(before), { stop_reason: JSON.stringify(kept) }).toString() }),
      ...(tries > 1 && isObject(usage) ? { usage: JSON.stringify(usage) } : {}),
    })
  }

  return {
    push(frame) {
      const entry = eventOf(frame)
      if (entry) return take(entry)
      if (current.held.length === 0) return [...opened(), frame.raw]
      current.held.push({ frame, text: '', data: {} })
      return []
    },
    endTry() {
      const held = assembled(current.id, current.assembly)
      if (tries > 0 && (!held || !current.isOver || current.hasFailed)) return undefined
      if (ended) spent = addUsage(spent, ended.usage)
      ended = current
      current = newTry()
      tries++
      return held
    },
    release(refused) {
      if (!ended) return []
      const { held, usage } = ended
      const total = addUsage(spent, usage)
      // A later response that broke off may have left a block open.
      const closing = current.id === undefined ? [] : blocks.close()
      let calls = 0
      const dropped = new Set<unknown>()
      let hasCalls = false
      const isAsCame = tries === 1 && refused.size === 0 && current.id === undefined
      const out = held.flatMap((entry) => {
        const { type, index } = entry.data
        if (isAsCame) return [entry.frame.raw]
        if (isCallStart(entry.data)) {
          if (refused.has(calls++)) dropped.add(index)
          else hasCalls = true
        }
        const isOwn = tries === 1 && refused.size === 0
        if (type === 'message_delta' && !isOwn) return [ending(entry, hasCalls, total)]
        if (index === undefined) return [terminated(entry.frame)]
        return dropped.has(index) ? [] : [blocks.place(entry)]
      })
      return [...opened(), ...closing, ...out]
    },
    toAnswer(isJson) {
      const bytes = [...opened(), ...blocks.close()]
      return [bytes, openMessagesStream(true, isJson, { blocks, usage: addUsage(spent, ended?.usage) })]
    },
  }
}
