/** Responses whose calls are held until it is known which of them the client gets. */
import { dataOf, type Frame, isWhole, terminated, withData } from '../sse/frames.ts'
import type { CallGate, HeldCalls } from './dialect.ts'
import { heldOf, isClientCall, keptPlaces, textOfOutputItems } from './responses-shape.ts'
import { openResponsesStream, responseOf, type Slot } from './responses-stream.ts'
import { addUsage, isObject, type Json, objectsIn, objectsOf, parseObject, summedUsage } from './shape.ts'

const DONE = '[DONE]'

export function readResponseCalls(body: Buffer): HeldCalls | undefined {
  const response = parseObject(body.toString('utf8'))
  if (!response || !Array.isArray(response['output'])) return undefined
  return heldOf(response['id'], objectsOf(response['output']))
}

/** The places of the items that are left when the calls in `refused`, by their place among the calls, are gone. */
function placesLeft(output: readonly Json[], refused: ReadonlySet<number>): number[] {
  const calls = output.flatMap((item, at) => (isClientCall(item) ? [at] : []))
  return keptPlaces(output, (_, at) => refused.has(calls.indexOf(at)))
}

export function withoutResponseCalls(
  body: Buffer,
  refused: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [response = {}, ...before] = objectsIn([body, ...earlier])
  const output = objectsOf(response['output'])
  const said = before.flatMap((one) => objectsOf(one['output']).filter(({ type }) => type === 'message'))
  const left = placesLeft(output, refused).map((at) => output[at])
  const kept = [...said, ...left.filter(isObject)]
  return Buffer.from(
    JSON.stringify({
      ...response,
      output: kept,
      ...('output_text' in response ? { output_text: textOfOutputItems(kept) } : {}),
      ...summedUsage(before, response),
    }),
  )
}

/** One upstream response, as far as it is not with the client. */
interface Try {
  opening: Frame[]
  held: { readonly frame: Frame; readonly event: Json | undefined }[]
  /** Its items by the place that its provider gives them, as they were told of last. */
  readonly items: Map<unknown, Json>
  /** Where they are in the client's output, as far as they are there. */
  readonly slots: Map<unknown, Slot>
  response: Json
  /** The response came to an end that is none of a failure's. */
  isOver: boolean
  hasCalls: boolean
  done: Frame | undefined
}

const newTry = (): Try => ({
  opening: [],
  held: [],
  items: new Map(),
  slots: new Map(),
  response: {},
  isOver: false,
  hasCalls: false,
  done: undefined,
})

function isEnd({ type }: Json): boolean {
  return type === 'response.completed' || type === 'response.incomplete'
}

export function openResponsesGate(): CallGate {
  let current = newTry()
  let ended: Try | undefined
  let tries = 0
  let hasBegun = false
  let spent: unknown
  /** What the client's output consists of so far. */
  const slots: Slot[] = []
  let number: number | undefined

  const renumbered = (event: Json): Json => {
    if (typeof event['sequence_number'] !== 'number') return event
    number = number === undefined ? event['sequence_number'] : number + 1
    return event['sequence_number'] === number ? event : { ...event, sequence_number: number }
  }

  /** An event for the client; its bytes stay where nothing in it has to change. */
  const bytesOf = (frame: Frame, original: Json, changed: Json = original): Buffer => {
    const event = renumbered(changed)
    return event === original ? terminated(frame) : withData(frame, JSON.stringify(event))
  }

  /** What the client's stream begins with: the beginning of the response of which it sees something first. */
  const opened = ({ opening }: Try): Buffer[] => {
    if (hasBegun) return []
    hasBegun = true
    return opening.map((frame) => bytesOf(frame, parseObject(dataOf(frame) ?? '') ?? {}))
  }

  const show = ({ items, slots: own }: Try, frame: Frame, event: Json): Buffer => {
    const place = event['output_index']
    const item = items.get(place)
    if (!item) return bytesOf(frame, event)
    const slot = own.get(place) ?? { index: slots.length, item, isDone: true, text: '' }
    if (!own.has(place)) slots.push(slot)
    own.set(place, slot)
    slot.item = item
    return bytesOf(frame, event, place === slot.index ? event : { ...event, output_index: slot.index })
  }

  /** Lets go what was held before a message: reasoning, which may have led to a call. */
  const flushed = (): Buffer[] => {
    const { held } = current
    current.held = []
    return held.map(({ frame, event }) => (event ? show(current, frame, event) : frame.raw))
  }

  const take = (frame: Frame, event: Json): Buffer[] => {
    const place = event['output_index']
    if (isObject(event['item'])) current.items.set(place, event['item'])
    const item = current.items.get(place)
    if (item && isClientCall(item)) current.hasCalls = true
    // The last event of a stream that broke off may lack its end, which it must not get where nothing follows.
    if (current.hasCalls || !item || item['type'] === 'reasoning' || !isWhole(frame)) {
      current.held.push({ frame, event })
      return []
    }
    return [...opened(current), ...flushed(), show(current, frame, event)]
  }

  /** The end of a response, with all that the client has of it and all that it took. */
  const total = (event: Json): Json => {
    const response = responseOf(event)
    const usage = addUsage(spent, response['usage'])
    const output = slots.map(({ item }) => item)
    return { ...event, response: { ...response, output, ...(isObject(usage) ? { usage } : {}) } }
  }

  return {
    push(frame) {
      const data = dataOf(frame)
      if (data?.trim() === DONE) {
        current.done = frame
        return []
      }
      const event = data === undefined ? undefined : parseObject(data)
      if (!event) {
        // A comment keeps its place.
        if (hasBegun && current.held.length === 0) return [frame.raw]
        if (current.held.length === 0) current.opening.push(frame)
        else current.held.push({ frame, event })
        return []
      }
      const response = responseOf(event)
      switch (event['type']) {
        case 'response.created':
        case 'response.queued':
        case 'response.in_progress':
          current.response = response
          current.opening.push(frame)
          return []
        case 'response.completed':
        case 'response.incomplete':
          current.isOver = true
          current.response = response
          break
        case 'response.failed':
          current.response = response
          break
        default:
          if ('output_index' in event) return take(frame, event)
      }
      current.held.push({ frame, event })
      return []
    },
    endTry() {
      // The response before one that failed is what the client gets.
      if (tries > 0 && !current.isOver) return undefined
      if (ended) spent = addUsage(spent, ended.response['usage'])
      // What an earlier response told of stays held for ever: the client goes on with this one.
      ended = current
      current = newTry()
      tries++
      return ended.isOver ? heldOf(ended.response['id'], [...ended.items.values()]) : undefined
    },
    release(refused) {
      if (!ended) return []
      const { items, held, done } = ended
      const order = [...items.keys()]
      const left = new Set(placesLeft([...items.values()], refused).map((at) => order[at]))
      const isAsCame = tries === 1 && refused.size === 0 && current.slots.size === 0
      const out = isAsCame && !hasBegun ? ended.opening.map(({ raw }) => raw) : opened(ended)
      for (const { frame, event } of held) {
        if (isAsCame) out.push(frame.raw)
        else if (!event) out.push(terminated(frame))
        else if (!('output_index' in event))
          out.push(bytesOf(frame, event, isEnd(event) ? total(event) : event))
        else if (left.has(event['output_index'])) out.push(show(ended, frame, event))
      }
      if (!done) return out
      return [...out, isAsCame ? done.raw : terminated(done)]
    },
    toAnswer(isJson) {
      const usage = addUsage(spent, ended?.response['usage'])
      const text = textOfOutputItems(slots.map(({ item }) => item))
      const response = ended?.response ?? {}
      return [[], openResponsesStream(true, isJson, { hasBegun, slots, response, number, usage, text })]
    },
  }
}
