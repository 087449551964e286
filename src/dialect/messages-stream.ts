/** Streamed Messages responses as the last of a run: tool calls out, terminal state in. */
import { isRealAnswer, mayStillBeMarkup } from '../core/answer.ts'
import { isWhole, terminated } from '../sse/frames.ts'
import type { AnswerStream } from './dialect.ts'
import { type Blocks, changed, createBlocks, event, eventOf, type MessagesEvent } from './messages-events.ts'
import { assembled, createAssembly } from './messages-held.ts'
import { isCall, isCutOff, laterUsage, memberText, stopWithoutCalls, withMembers } from './messages-shape.ts'
import { addUsage, isObject, type Json, textOf } from './shape.ts'

/** The text that an event adds to a block. */
function addedText({ type, content_block: block, delta }: Json): string {
  if (type === 'content_block_start' && isObject(block) && block['type'] === 'text') {
    return textOf(block['text'])
  }
  return type === 'content_block_delta' && isObject(delta) && delta['type'] === 'text_delta'
    ? textOf(delta['text'])
    : ''
}

/** What a client has got already of a response whose end is still to come. */
export interface Begun {
  readonly blocks: Blocks
  /** Of the upstream responses it came from. */
  readonly usage: unknown
}

/**
 * A response goes to the client as it comes, with two exceptions: text is held while it may still turn out to be
 * reasoning or a written-out tool call, and the end (from `message_delta` on) is held until it is known whether there was
 * an answer. An error goes as it came, and so does all after it. Without `dropCalls` no text is held and nothing is taken
 * out.
 */
export function openMessagesStream(dropCalls: boolean, isJson: boolean, begun?: Begun): AnswerStream {
  const blocks = begun?.blocks ?? createBlocks()
  let hasBegun = begun !== undefined
  let tries = begun ? 1 : 0
  let showing = !dropCalls
  let shown = ''
  let held: MessagesEvent[] = []
  let heldText = ''
  let ending: MessagesEvent[] = []
  /** Calls of the current response, by their numbers in it. */
  const dropped = new Set<unknown>()
  /** The newest response, with its calls. */
  let newest: { readonly id: string; readonly assembly: ReturnType<typeof createAssembly> } | undefined
  /** Of the tries that are over, and of the current one. */
  let spent = begun?.usage
  let usage: unknown
  let hasSaid = false
  let hasFailed = false

  const dropHeld = () => {
    held = []
    heldText = ''
  }

  const release = (): Buffer[] => {
    const bytes = held.map((entry) => blocks.place(entry))
    shown += heldText
    hasSaid ||= bytes.length > 0
    dropHeld()
    return bytes
  }

  const show = (entry: MessagesEvent): Buffer[] => {
    const text = addedText(entry.data)
    const { type, content_block: block } = entry.data
    const opensText = type === 'content_block_start' && isObject(block) && block['type'] === 'text'
    if (showing || (held.length === 0 && !opensText)) {
      shown += text
      hasSaid = true
      return [blocks.place(entry)]
    }
    held.push(entry)
    heldText += text
    showing = !mayStillBeMarkup(heldText, isJson)
    return showing ? release() : []
  }

  const isDropped = ({ type, index, content_block: block }: Json): boolean => {
    if (!dropCalls) return false
    if (type === 'content_block_start') {
      if (isCall(block)) dropped.add(index)
      else dropped.delete(index)
    }
    return dropped.has(index)
  }

  const take = (entry: MessagesEvent): Buffer[] => {
    const { data, frame } = entry
    newest?.assembly.add(data)
    switch (data['type']) {
      case 'message_start': {
        const message = isObject(data['message']) ? data['message'] : {}
        usage = message['usage']
        newest = { id: textOf(message['id']), assembly: createAssembly() }
        if (hasBegun) return blocks.close()
        hasBegun = true
        return [terminated(frame)]
      }
      case 'content_block_start':
      case 'content_block_delta':
      case 'content_block_stop':
        return isDropped(data) ? [] : show(entry)
      case 'message_delta':
        usage = laterUsage(usage, data['usage'])
        ending.push(entry)
        return []
      case 'message_stop':
        ending.push(entry)
        return []
      case 'error':
        hasFailed = true
        return [...flush(), terminated(frame)]
      default:
        return [frame.raw]
    }
  }

  /** All that is held of a response that failed. */
  const flush = (): Buffer[] => {
    const rest = ending.map(({ frame }) => terminated(frame))
    ending = []
    return [...release(), ...rest]
  }

  const ownEnding = (metadata: unknown): Buffer[] => [
    event({
      type: 'message_delta',
      delta: { stop_reason: 'end_turn', stop_sequence: null },
      usage: isObject(spent) ? spent : { output_tokens: 0 },
      governor: metadata,
    }),
    event({ type: 'message_stop' }),
  ]

  const ownStart = (): Buffer => {
    const message = { id: 'msg_governor', type: 'message', role: 'assistant', model: '', content: [] }
    const rest = { stop_reason: null, stop_sequence: null, usage: { input_tokens: 0, output_tokens: 0 } }
    return event({ type: 'message_start', message: { ...message, ...rest } })
  }

  const finalDelta = (entry: MessagesEvent, metadata: unknown): Buffer => {
    const { delta } = entry.data
    const reason = isObject(delta) ? delta['stop_reason'] : undefined
    const kept = dropCalls ? stopWithoutCalls(reason) : reason
    const before = memberText(Buffer.from(entry.text), 'delta')
    return changed(entry, {
      ...(kept === reason || before === undefined
        ? {}
        : { delta: withMembers(Buffer.from(before), { stop_reason: JSON.stringify(kept) }).toString() }),
      ...(tries > 1 && isObject(spent) ? { usage: JSON.stringify(spent) } : {}),
      governor: JSON.stringify(metadata),
    })
  }

  const lastDelta = (): MessagesEvent | undefined =>
    ending.findLast(({ data }) => data['type'] === 'message_delta')

  const providersEnding = (metadata: unknown): Buffer[] => {
    const last = lastDelta()
    if (!last && dropCalls) return ownEnding(metadata)
    return ending.map((entry) => (entry === last ? finalDelta(entry, metadata) : terminated(entry.frame)))
  }

  const isTruncated = (): boolean => {
    const delta = lastDelta()?.data['delta']
    return isObject(delta) && isCutOff(delta['stop_reason'])
  }

  return {
    get hasBegun() {
      return hasBegun
    },
    get hasFailed() {
      return hasFailed
    },
    get hasSaid() {
      return hasSaid
    },
    abandon: flush,
    get text() {
      return shown
    },
    get held() {
      return newest && assembled(newest.id, newest.assembly)
    },
    push(frame) {
      if (hasFailed) return [frame.raw]
      const entry = eventOf(frame)
      if (entry) return take(entry)
      // What broke off says nothing, and would spoil what comes after it.
      if (dropCalls && !isWhole(frame)) return []
      hasSaid = true
      return [frame.raw]
    },
    endTry() {
      const answered = isRealAnswer(shown + heldText, isJson)
      tries++
      spent = addUsage(spent, usage)
      usage = undefined
      dropped.clear()
      if (hasFailed || ending.at(-1)?.data['type'] !== 'message_stop') return 'broken'
      if (!answered && dropCalls) {
        dropHeld()
        ending = []
      }
      return answered ? 'answered' : 'silent'
    },
    finish(terminalFor, fallback) {
      const out = release()
      const answered = isRealAnswer(shown, isJson)
      const metadata = terminalFor(answered, isTruncated())
      if (dropCalls) out.push(...blocks.close())
      if (!hasBegun && dropCalls) out.unshift(ownStart())
      if (answered || fallback === undefined) return [...out, ...providersEnding(metadata)]
      shown = fallback
      return [...out, ...blocks.text(fallback), ...ownEnding(metadata)]
    },
  }
}
