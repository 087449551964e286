/** Streamed Responses as the last of a run: tool calls out, terminal state in. */
import { isRealAnswer, mayStillBeMarkup } from '../core/answer.ts'
import { applyEdits, setMember } from '../json/edit.ts'
import { member, members, root } from '../json/scan.ts'
import { dataOf, type Frame, isWhole, terminated, withData } from '../sse/frames.ts'
import type { AnswerStream } from './dialect.ts'
import { ownId } from './responses-answer.ts'
import { closingEvents, eventFrame, messageEvents } from './responses-events.ts'
import {
  COMPLETED,
  heldOf,
  isClientCall,
  messageItem,
  textOfOutputItems,
  textsOfContent,
} from './responses-shape.ts'
import { addUsage, isObject, type Json, objectsOf, parseObject, textOf } from './shape.ts'

const DONE = '[DONE]'

/** An item of the output that the client gets, or may get. */
export interface Slot {
  /** Its place in the client's output. */
  readonly index: number
  /** As it was added, then as it was done. */
  item: Json
  isDone: boolean
  /** What a message says so far. */
  text: string
}

/** An event for the client: the bytes it came as, and what it is. */
interface Piece {
  readonly frame: Frame | undefined
  readonly original: Json | undefined
  readonly event: Json
}

/** What the client has of a response that was begun before. */
export interface Begun {
  readonly hasBegun: boolean
  readonly slots: readonly Slot[]
  /** The response as it was last told of. */
  readonly response: Json
  readonly number: number | undefined
  readonly usage: unknown
  readonly text: string
}

const NOT_BEGUN: Begun = {
  hasBegun: false,
  slots: [],
  response: {},
  number: undefined,
  usage: undefined,
  text: '',
}

export function responseOf(event: Json): Json {
  return isObject(event['response']) ? event['response'] : {}
}

/** Text that an event adds to a message. */
function addedText(event: Json): string {
  const isText = event['type'] === 'response.output_text.delta' || event['type'] === 'response.refusal.delta'
  return isText ? textOf(event['delta']) : ''
}

/**
 * A response goes to the client as it comes, with two exceptions: text is held while it may still turn out to be
 * reasoning or a written-out tool call, and the end is held until it is known whether there was an answer. A failure goes as
 * it came, and so does all after it. Without `dropCalls` no text is held and nothing is taken out. Places in the output and sequence numbers follow from what the
 * client gets.
 */
export function openResponsesStream(
  dropCalls: boolean,
  isJson: boolean,
  begun: Begun = NOT_BEGUN,
): AnswerStream {
  /** Upstream responses that are over, and the number of the one whose beginning the client got. */
  let tries = begun.hasBegun ? 1 : 0
  let opened = begun.hasBegun ? 0 : undefined
  let showing = !dropCalls
  let shown = ''
  let held: Piece[] = []
  let heldText = ''
  /** What the client's output consists of, and what of it is only held. */
  let slots: Slot[] = [...begun.slots]
  let heldSlots = 0
  /** Of the current response, by the place its provider gives it; unset where the item is taken out. */
  let places = new Map<unknown, Slot | undefined>()
  /** Of these, what was taken out. */
  let dropped: Json[] = []
  let ending: { readonly frame: Frame; readonly event: Json } | undefined
  /** The newest state of the response as its provider told it. */
  let told: Json = begun.response
  let changed = begun.hasBegun || begun.usage !== undefined
  let spent: unknown = begun.usage
  let usage: unknown
  let done: Buffer | undefined
  let hasSaid = false
  let hasFailed = false
  let isNumbered = begun.number !== undefined
  let number: number | undefined = begun.number

  const numbered = (event: Json, numbering: boolean): Json => {
    if (!numbering) return event
    number = number === undefined ? Number(event['sequence_number'] ?? 0) : number + 1
    return event['sequence_number'] === number ? event : { ...event, sequence_number: number }
  }

  const bytesOf = ({ frame, original, event }: Piece): Buffer => {
    const numbering = original ? typeof original['sequence_number'] === 'number' : isNumbered
    const next = numbered(event, numbering)
    if (!frame) return eventFrame(next)
    return next === original ? terminated(frame) : withData(frame, JSON.stringify(next))
  }

  const own = (events: readonly Json[]): Buffer[] =>
    events.map((event) => bytesOf({ frame: undefined, original: undefined, event }))

  const release = (): Buffer[] => {
    const bytes = held.map(bytesOf)
    shown += heldText
    hasSaid ||= bytes.length > 0
    held = []
    heldText = ''
    heldSlots = 0
    return bytes
  }

  const dropHeld = () => {
    if (heldSlots > 0) slots = slots.slice(0, -heldSlots)
    held = []
    heldText = ''
    heldSlots = 0
  }

  /** What an event tells of its item; `undefined` where the client does not get it. */
  const slotOf = (event: Json): Slot | undefined => {
    const place = event['output_index']
    const item = isObject(event['item']) ? event['item'] : undefined
    if (item && !places.has(place)) {
      const isOut = dropCalls && isClientCall(item)
      if (isOut) changed = true
      if (isOut) dropped.push(item)
      const slot: Slot | undefined = isOut
        ? undefined
        : { index: slots.length, item, isDone: false, text: '' }
      places.set(place, slot)
      if (slot) slots.push(slot)
      // A message that may be no answer keeps back all that comes after it.
      if (slot && !showing && (held.length > 0 || item['type'] === 'message')) heldSlots++
    }
    return places.get(place)
  }

  const show = (piece: Piece, slot: Slot | undefined): Buffer[] => {
    const { event } = piece
    let text = addedText(event)
    if (slot) {
      slot.text += text
      if (event['type'] === 'response.output_item.done' && isObject(event['item'])) {
        slot.item = event['item']
        slot.isDone = true
        const whole = slot.item['type'] === 'message' ? textsOfContent(slot.item['content']).join('') : ''
        // Providers that do not stream text tell it all at the end.
        if (slot.text === '') text = slot.text = whole
      }
    }
    if (showing || (held.length === 0 && slot?.item['type'] !== 'message')) {
      shown += text
      hasSaid = true
      return [bytesOf(piece)]
    }
    held.push(piece)
    heldText += text
    if (text !== '') showing = !mayStillBeMarkup(heldText, isJson)
    return showing ? release() : []
  }

  /** The end in the provider's own bytes where nothing but the metadata is new. */
  const providersEnding = (metadata: unknown): Buffer => {
    const { frame, event } = ending ?? { frame: undefined, event: {} as Json }
    const response = responseOf(event)
    const isNext = number === undefined || event['sequence_number'] === number + 1
    const isAsCame = !changed && tries === 1 && (isTruncated() || response['status'] === 'completed')
    if (!frame || !isNext || (dropCalls && !isAsCame)) return ended(response, metadata)
    const data = Buffer.from(dataOf(frame) ?? '')
    const span = member(members(data, root(data)), 'response')?.value
    const governor = span && setMember(span, members(data, span), 'governor', JSON.stringify(metadata))
    return withData(frame, applyEdits(data, governor ? [governor] : []).toString('utf8'))
  }

  const isTruncated = (): boolean => ending?.event['type'] === 'response.incomplete'

  const ended = (last: Json, metadata: unknown): Buffer => {
    const total = tries > 1 || begun.usage !== undefined ? spent : (last['usage'] ?? spent)
    const response: Json = {
      ...told,
      ...last,
      ...(isTruncated() ? {} : COMPLETED),
      output: slots.map(({ item }) => item),
      ...(total === undefined ? {} : { usage: total }),
      governor: metadata,
    }
    return Buffer.concat(
      own([{ type: isTruncated() ? 'response.incomplete' : 'response.completed', response }]),
    )
  }

  /** Items that were begun and not done, as a provider that fails leaves them. */
  const closeOpen = (): Buffer[] =>
    slots
      .filter(({ isDone }) => !isDone)
      .flatMap((slot) => {
        const { item, events } = closingEvents(slot.item, slot.text, slot.index)
        slot.item = item
        slot.isDone = true
        changed = true
        return own(events)
      })

  const say = (text: string): Buffer[] => {
    const item = messageItem(ownId('msg', told['id']), text)
    const index = slots.length
    slots.push({ index, item, isDone: true, text })
    changed = true
    return own(messageEvents(item, text, index))
  }

  const endText = (): string =>
    ending ? textOfOutputItems(objectsOf(responseOf(ending.event)['output'])) : ''

  return {
    get hasBegun() {
      return opened !== undefined
    },
    get hasFailed() {
      return hasFailed
    },
    get hasSaid() {
      return hasSaid
    },
    abandon: release,
    get held() {
      return heldOf(told['id'], dropped)
    },
    get text() {
      return [begun.text, shown].filter((text) => text !== '').join('\n\n')
    },
    push(frame) {
      const data = dataOf(frame)
      if (hasFailed) return [frame.raw]
      if (data?.trim() === DONE) {
        done = terminated(frame)
        return []
      }
      const event = data === undefined ? undefined : parseObject(data)
      // What broke off says nothing, and would spoil what comes after it.
      if (!event && dropCalls && !isWhole(frame)) return []
      if (!event) {
        hasSaid = true
        return [frame.raw]
      }
      isNumbered ||= typeof event['sequence_number'] === 'number'
      const response = responseOf(event)
      if (isObject(response['usage'])) usage = response['usage']
      switch (event['type']) {
        case 'response.created':
        case 'response.queued':
        case 'response.in_progress':
          told = response
          dropped = []
          opened ??= tries
          return tries > opened ? [] : [bytesOf({ frame, original: event, event })]
        case 'response.completed':
        case 'response.incomplete':
          told = response
          ending = { frame, event }
          return []
        case 'response.failed':
        case 'error':
          hasFailed = true
          return [...release(), changed ? bytesOf({ frame, original: event, event }) : terminated(frame)]
        default:
      }
      if (!('output_index' in event)) return [bytesOf({ frame, original: event, event })]
      const slot = slotOf(event)
      if (!slot && dropCalls && places.has(event['output_index'])) return []
      const placed =
        !slot || slot.index === event['output_index'] ? event : { ...event, output_index: slot.index }
      if (placed !== event) changed = true
      return show({ frame, original: event, event: placed }, slot)
    },
    endTry() {
      const answered = isRealAnswer(shown + heldText, isJson) || isRealAnswer(endText(), isJson)
      tries++
      spent = addUsage(spent, usage)
      usage = undefined
      places = new Map()
      if (hasFailed || !ending) return 'broken'
      if (!answered && dropCalls) {
        dropHeld()
        ending = undefined
      }
      return answered ? 'answered' : 'silent'
    },
    finish(terminalFor, fallback) {
      const out = release()
      const untold = shown === '' ? endText() : ''
      const answered = isRealAnswer(shown + untold, isJson)
      const metadata = terminalFor(answered, isTruncated())
      if (!dropCalls) {
        if (ending) out.push(providersEnding(metadata))
      } else {
        out.push(...closeOpen())
        if (!answered && fallback !== undefined) out.push(...say(fallback))
        else if (untold !== '') out.push(...say(untold))
        out.push(providersEnding(metadata))
      }
      shown = !answered && fallback !== undefined ? fallback : shown + untold
      if (done) out.push(done)
      return out
    },
  }
}
