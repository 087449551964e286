/** Messages responses whose calls are held until it is known which of them the client gets. */
import { createFrameReader, terminated } from '../sse/frames.ts'
import type { CallGate, HeldCalls, RefusedRound } from './dialect.ts'
import { callsOf, contentAt } from './messages-content.ts'
import { changed, createBlocks, eventOf, type MessagesEvent } from './messages-events.ts'
import {
  answerText,
  contentOf,
  isCall,
  laterUsage,
  memberText,
  stopWithoutCalls,
  withMembers,
} from './messages-shape.ts'
import { openMessagesStream } from './messages-stream.ts'
import { addUsage, isObject, type Json, parseObject, textOf } from './shape.ts'

/** A response as the input shows it: its id, and its content as JSON text, every digit as it was. */
interface Said {
  readonly id: string
  readonly content: string
}

function heldOf(said: Said): HeldCalls {
  const content = contentAt(Buffer.from(said.content), 0)
  const text = answerText(contentOf({ content: JSON.parse(said.content) }))
  const { id } = said
  return { calls: callsOf(content), text, message: said, ...(id === '' ? {} : { id }) }
}

export function readMessageCalls(body: Buffer): HeldCalls | undefined {
  const message = parseObject(body.toString('utf8'))
  if (!message || !Array.isArray(message['content'])) return undefined
  return heldOf({ id: textOf(message['id']), content: memberText(body, 'content') ?? '[]' })
}

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
  const [answer = {}, ...before] = [body, ...earlier].map((one) => parseObject(one.toString('utf8')) ?? {})
  const usage = [...before, answer].map((one) => one['usage']).filter(isObject)
  const kept = keptContent(contentOf(answer), refused)
  const content = [...before.flatMap((one) => contentOf(one).filter((block) => !isCall(block))), ...kept]
  return Buffer.from(
    JSON.stringify({
      ...answer,
      content,
      stop_reason: kept.some(isCall) ? answer['stop_reason'] : stopWithoutCalls(answer['stop_reason']),
      ...(usage.length > 0 ? { usage: usage.reduce<unknown>(addUsage, undefined) } : {}),
    }),
  )
}

/** The results of a refused round, as a user message holds them. */
function resultsOf({ held, results }: RefusedRound): Json[] {
  return held.calls.map(({ id }, at) => ({
    type: 'tool_result',
    tool_use_id: id,
    content: results[at] ?? '',
  }))
}

function saidIn({ held }: RefusedRound): Said {
  const { message } = held
  return isObject(message)
    ? { id: textOf(message['id']), content: textOf(message['content']) || '[]' }
    : { id: '', content: '[]' }
}

/** The messages (JSON texts) that stand after a refused round: what the model said, and what became of each call. */
export function roundMessages(round: RefusedRound): string[] {
  return [
    `{"role":"assistant","content":${saidIn(round).content}}`,
    JSON.stringify({ role: 'user', content: resultsOf(round) }),
  ]
}

/** The results (JSON texts) of the calls in `refused`. */
export function refusedResults(round: RefusedRound, refused: ReadonlySet<number>): string[] {
  return resultsOf(round)
    .filter((_, at) => refused.has(at))
    .map((result) => JSON.stringify(result))
}

/** What is sent after a refused round where the provider keeps what the model said, under this id. */
export function roundAfter(round: RefusedRound): { readonly id: string; readonly messages: string } {
  return { id: saidIn(round).id, messages: JSON.stringify([{ role: 'user', content: resultsOf(round) }]) }
}

const isCallStart = ({ type, content_block: block }: Json): boolean =>
  type === 'content_block_start' && isCall(block)

/** The content of a message put together from the events of a stream. */
function createAssembly() {
  const blocks: { readonly start: Json; readonly grown: Map<string, string>; json: string }[] = []
  const places = new Map<unknown, (typeof blocks)[number]>()
  return {
    add({ type, index, content_block: start, delta }: Json): void {
      if (type === 'content_block_start' && isObject(start)) {
        const block = { start, grown: new Map<string, string>(), json: '' }
        blocks.push(block)
        places.set(index, block)
        return
      }
      const block = places.get(index)
      if (type !== 'content_block_delta' || !block || !isObject(delta)) return
      if (delta['type'] === 'input_json_delta') block.json += textOf(delta['partial_json'])
      for (const key of ['text', 'thinking', 'signature']) {
        const piece = delta[key]
        if (typeof piece === 'string')
          block.grown.set(key, (block.grown.get(key) ?? textOf(block.start[key])) + piece)
      }
    },
    /** As JSON text. @throws {SyntaxError} where a call's input is not complete. */
    get content(): string {
      const written = blocks
        // A text without a letter can't be sent back.
        .filter(
          ({ start, grown }) =>
            start['type'] !== 'text' || (grown.get('text') ?? textOf(start['text'])) !== '',
        )
        .map(({ start, grown, json }) => {
          const whole = Buffer.from(JSON.stringify({ ...start, ...Object.fromEntries(grown) }))
          if (json === '') return whole.toString()
          JSON.parse(json)
          return withMembers(whole, { input: json }).toString()
        })
      return `[${written.join(',')}]`
    },
  }
}

/** What a whole streamed response says; `undefined` where it has no end. */
export function streamedMessage(body: Buffer): HeldCalls | undefined {
  const assembly = createAssembly()
  let id: string | undefined
  let hasEnd = false
  const reader = createFrameReader()
  for (const frame of [...reader.push(body), ...reader.end()]) {
    const data = eventOf(frame)?.data ?? {}
    assembly.add(data)
    if (data['type'] === 'message_start' && isObject(data['message'])) id = textOf(data['message']['id'])
    if (data['type'] === 'message_delta') hasEnd = true
  }
  return id !== undefined && hasEnd ? heldOf({ id, content: assembly.content }) : undefined
}

/** One upstream response, as far as it is not with the client. */
interface Try {
  readonly assembly: ReturnType<typeof createAssembly>
  id: string | undefined
  held: MessagesEvent[]
  usage: unknown
}

const newTry = (): Try => ({ assembly: createAssembly(), id: undefined, held: [], usage: undefined })

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
    const bytes = entry.data['index'] === undefined ? entry.frame.raw : blocks.place(entry)
    if (!hasOpened && entry.data['type'] !== 'content_block_delta' && entry.data['type'] !== 'error') {
      opening.push(bytes)
      return []
    }
    return [...opened(), bytes]
  }

  const take = (entry: MessagesEvent): Buffer[] => {
    const { data } = entry
    current.assembly.add(data)
    if (data['type'] === 'message_start') {
      const message = isObject(data['message']) ? data['message'] : {}
      current.id = textOf(message['id'])
      current.usage = message['usage']
      return tries === 0 ? show(entry) : blocks.close()
    }
    if (data['type'] === 'message_delta') current.usage = laterUsage(current.usage, data['usage'])
    const isEnd = data['type'] === 'message_delta' || data['type'] === 'message_stop'
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
      if (ended) spent = addUsage(spent, ended.usage)
      ended = current
      current = newTry()
      tries++
      if (ended.id === undefined) return undefined
      try {
        return heldOf({ id: ended.id, content: ended.assembly.content })
      } catch {
        // It broke off in the middle of a call.
        return undefined
      }
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
      const out = held.flatMap((entry) => {
        const { type, index } = entry.data
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
    toAnswer() {
      const bytes = [...opened(), ...blocks.close()]
      return [bytes, openMessagesStream(true, { blocks, usage: addUsage(spent, ended?.usage) })]
    },
  }
}
