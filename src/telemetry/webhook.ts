/**
 * Sends messages to the user's receiver about events that need a human. They are signed as
 * https://www.standardwebhooks.com describes, so that its libraries verify them. They never delay a request: they
 * wait in a bounded queue.
 */
import { createHmac } from 'node:crypto'
import { unescape as decoded } from 'node:querystring'
import { setTimeout as pause } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { request } from 'undici'
import {
  type Emit,
  type Message,
  type ProxyEvent,
  rowOf,
  SECRET_PREFIX,
  type WebhookOutcome,
  type WebhookTopic,
} from './event.ts'

/** The settings of the receiver. */
export interface WebhookSettings {
  readonly url: string
  readonly secret: string
  readonly on: readonly WebhookTopic[]
}

/** The environment of a webhook. */
export interface WebhookOptions {
  /** Returns milliseconds since the epoch. */
  readonly now: () => number
  /** Returns a new random id. */
  readonly newId: () => string
  /** Resolves to false if another process sends the message with this subject. */
  readonly isFirst: (subject: string) => Promise<boolean>
  /** Returns a link to a session by its id in the API. */
  readonly pageOf: (id: string) => string
  /** Gets the outcome of each message. */
  readonly emit: Emit
  /** Milliseconds to wait before each further attempt; one attempt for each entry. */
  readonly backOff?: readonly number[]
}

/** Sends messages about events. */
export interface Webhook {
  /** Queues a message if the receiver wants one about this event. Never throws and never waits. */
  record(event: ProxyEvent): void
  /** Drops the queue and aborts the current message. */
  close(): void
}

const TIMEOUT = 2_000
const BACK_OFF = [1_000, 5_000, 25_000]
/** The most messages of a lane that are not settled. */
const MAX_QUEUE = 1_000
/** The most questions that are sent at the same time. */
const MAX_QUESTIONS = 8
/** The most subjects that are remembered as sent. */
const MAX_SUBJECTS = 10_000

/** Returns the value of `webhook-signature` for a body: HMAC-SHA256 over id, timestamp (seconds) and body. */
function signatureOf(secret: string, id: string, timestamp: number, body: string): string {
  // After the standard's prefix the key is base64, else it is the text itself.
  const key = secret.startsWith(SECRET_PREFIX)
    ? Buffer.from(secret.slice(SECRET_PREFIX.length), 'base64')
    : secret
  return `v1,${createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')}`
}

/** The receiver's address without the user and password that it may contain, and the header that replaces them. */
interface Receiver {
  readonly url: URL
  readonly authorization: { readonly authorization?: string }
}

function receiverOf(address: string): Receiver {
  const url = new URL(address)
  const { username, password } = url
  url.username = ''
  url.password = ''
  if (username === '' && password === '') return { url, authorization: {} }
  const credentials = `${decoded(username)}:${decoded(password)}`
  return { url, authorization: { authorization: `Basic ${Buffer.from(credentials).toString('base64')}` } }
}

/** A message on its way, with the same id in all attempts. */
interface Delivery {
  readonly message: Message
  readonly id: string
  readonly body: string
  /** Attempts that failed. */
  failures: number
}

/** Messages that wait for their turn. One whose attempt failed waits beside the lane, and holds up no other. */
interface Lane {
  readonly queue: Delivery[]
  /** Attempts under way, and how many there may be. */
  open: number
  readonly most: number
  /** All messages that are not settled. */
  held: number
}

interface Sender {
  readonly settings: WebhookSettings
  readonly receiver: Receiver
  readonly options: WebhookOptions
  /** Questions, to which somebody has to react in time, wait for nothing else. */
  readonly questions: Lane
  readonly others: Lane
  readonly sent: LRUCache<string, true>
  readonly stop: AbortController
}

/** Returns true if the receiver answered with 2xx within two seconds. A redirect is not followed. */
async function post(
  { settings: { secret }, receiver, options, stop }: Sender,
  { id, body }: Delivery,
): Promise<boolean> {
  const timestamp = Math.floor(options.now() / 1_000)
  try {
    const { statusCode, body: reply } = await request(receiver.url, {
      method: 'POST',
      headers: {
        ...receiver.authorization,
        'content-type': 'application/json',
        'webhook-id': id,
        'webhook-timestamp': String(timestamp),
        'webhook-signature': signatureOf(secret, id, timestamp, body),
      },
      body,
      signal: AbortSignal.any([stop.signal, AbortSignal.timeout(TIMEOUT)]),
    })
    await reply.dump()
    return statusCode >= 200 && statusCode < 300
  } catch {
    return false
  }
}

/** Makes one attempt; returns the outcome, or the milliseconds until the next attempt. */
async function attempt(sender: Sender, delivery: Delivery): Promise<WebhookOutcome | number> {
  const { options, stop } = sender
  const { until = Number.POSITIVE_INFINITY } = delivery.message
  if (options.now() >= until) return 'dropped'
  if (await post(sender, delivery)) return 'delivered'
  if (stop.signal.aborted) return 'dropped'
  const wait = (options.backOff ?? BACK_OFF)[delivery.failures]
  if (wait === undefined) return 'failed'
  delivery.failures++
  return options.now() + wait >= until ? 'dropped' : wait
}

async function deliver(sender: Sender, lane: Lane, delivery: Delivery): Promise<void> {
  lane.open++
  const result = await attempt(sender, delivery)
  lane.open--
  sendNext(sender, lane)
  if (typeof result === 'string') return settle(sender, lane, delivery.message, result)
  // The wait keeps no process alive, and ends when Governor closes.
  const { signal } = sender.stop
  await pause(result, undefined, { signal, ref: false }).catch(() => undefined)
  if (signal.aborted) return settle(sender, lane, delivery.message, 'dropped')
  lane.queue.push(delivery)
  sendNext(sender, lane)
}

function settle({ options }: Sender, lane: Lane, { type: topic }: Message, outcome: WebhookOutcome): void {
  lane.held--
  options.emit({ kind: 'webhook_sent', topic, outcome })
}

function sendNext(sender: Sender, lane: Lane): void {
  while (lane.open < lane.most) {
    const delivery = lane.queue.shift()
    if (!delivery) return
    void deliver(sender, lane, delivery)
  }
}

const newLane = (most: number): Lane => ({ queue: [], open: 0, most, held: 0 })

function enqueue(sender: Sender, message: Message): void {
  const { questions, others, options } = sender
  const lane = message.until === undefined ? others : questions
  if (lane.held >= MAX_QUEUE)
    return options.emit({ kind: 'webhook_sent', topic: message.type, outcome: 'dropped' })
  lane.held++
  const id = `evt_${options.newId()}`
  const time = new Date(options.now()).toISOString()
  const { session_id: apiId } = message.body
  const page = typeof apiId === 'string' ? options.pageOf(apiId) : undefined
  const body = JSON.stringify({ id, type: message.type, time, ...message.body, page })
  lane.queue.push({ message, id, body, failures: 0 })
  sendNext(sender, lane)
}

/** Creates a webhook that sends one message per subject, with retries. */
export function createWebhook(settings: WebhookSettings, options: WebhookOptions): Webhook {
  const sender: Sender = {
    settings,
    receiver: receiverOf(settings.url),
    options,
    questions: newLane(MAX_QUESTIONS),
    others: newLane(1),
    sent: new LRUCache({ max: MAX_SUBJECTS }),
    stop: new AbortController(),
  }
  return {
    record(event) {
      const message = rowOf(event).message?.(event)
      if (!message || !settings.on.includes(message.type)) return
      const subject = `${message.type} ${message.subject}`
      if (sender.sent.has(subject)) return
      sender.sent.set(subject, true)
      if (!message.isShared) return enqueue(sender, message)
      const send = (isFirst: boolean) => {
        if (isFirst && !sender.stop.signal.aborted) enqueue(sender, message)
      }
      // If the store fails, twice is better than never.
      options.isFirst(subject).then(send, () => send(true))
    },
    close() {
      for (const { queue } of [sender.questions, sender.others]) queue.length = 0
      sender.stop.abort()
    },
  }
}
