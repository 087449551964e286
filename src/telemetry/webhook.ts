/**
 * Sends messages to the user's receiver about events that need a human. They are signed as
 * https://www.standardwebhooks.com describes, so that its libraries verify them. They never delay a request: they
 * wait in a bounded queue.
 */

import { createHmac } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { unescape as decoded } from 'node:querystring'
import { setTimeout as pause } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { ignore } from '../core/thrown.ts'
import {
  type Emit,
  type Message,
  type ProxyEvent,
  ROWS,
  SECRET_PREFIX,
  WEBHOOK_FORMATS,
  type WebhookOutcome,
  type WebhookTopic,
} from './event.ts'

interface WebhookSettings {
  readonly url: string
  /** Unset: messages are not signed. */
  readonly secret?: string | undefined
  readonly format?: keyof typeof WEBHOOK_FORMATS
  readonly on: readonly WebhookTopic[]
}

/** The environment of a webhook. */
export interface WebhookOptions {
  readonly now: () => number
  readonly newId: () => string
  /** Resolves to false if another process sends the message with this subject. */
  readonly isFirst: (subject: string) => Promise<boolean>
  /** Returns a link to a session by its id in the API. */
  readonly pageOf: (id: string) => string
  readonly emit: Emit
  /** Milliseconds to wait before each further attempt; one attempt for each entry. */
  readonly backOff?: readonly number[]
  /** Milliseconds after which an attempt without an answer is given up. */
  readonly timeout?: number
}

const TIMEOUT = 2_000
const BACK_OFF = [1_000, 5_000, 25_000]
/** The most messages of a lane that are not settled. */
const MAX_QUEUE = 1_000
/** The most messages of a lane that are sent at the same time: one that hangs holds up no other. */
const MAX_SENT = 8
const MAX_SUBJECTS = 10_000

/** Messages whose attempts take turns. One whose attempt failed waits beside the lane, and holds up no other. */
function newLane() {
  const waiting: (() => void)[] = []
  return {
    /** How many attempts are under way. */
    open: 0,
    /** Begin the attempts that wait for their turn, oldest first. */
    waiting,
    /** All messages that are not settled. */
    held: 0,
  }
}

type Lane = ReturnType<typeof newLane>

function newSender(settings: WebhookSettings, options: WebhookOptions) {
  const stop = new AbortController()
  // Each message that waits for its next attempt listens to it; the queue is bounded.
  setMaxListeners(0, stop.signal)
  const url = new URL(settings.url)
  const { username, password } = url
  url.username = ''
  url.password = ''
  const credentials = Buffer.from(`${decoded(username)}:${decoded(password)}`).toString('base64')
  return {
    settings,
    options,
    /** The receiver's address without the user and password that it may contain, and the header that replaces them. */
    url,
    authorization: username === '' && password === '' ? {} : { authorization: `Basic ${credentials}` },
    /** Questions, to which somebody has to react in time, wait for nothing else. */
    questions: newLane(),
    others: newLane(),
    stop,
  }
}

type Sender = ReturnType<typeof newSender>

/** Returns true if the receiver answered with 2xx in time. A redirect is not followed. */
async function post(sender: Sender, id: string, body: string): Promise<boolean> {
  const { url, authorization, options, stop } = sender
  const { secret } = sender.settings
  const timestamp = Math.floor(options.now() / 1_000)
  // After the standard's prefix the key is base64, else it is the text itself.
  const key = secret?.startsWith(SECRET_PREFIX) ? Buffer.from(secret.slice(SECRET_PREFIX.length), 'base64') : secret
  const signature = key && createHmac('sha256', key).update(`${id}.${timestamp}.${body}`).digest('base64')
  try {
    const { request } = await import('./http-request.ts')
    const { statusCode, body: reply } = await request(url, {
      method: 'POST',
      headers: {
        ...authorization,
        'content-type': 'application/json',
        'webhook-id': id,
        'webhook-timestamp': String(timestamp),
        ...(signature && { 'webhook-signature': `v1,${signature}` }),
      },
      body,
      signal: AbortSignal.any([stop.signal, AbortSignal.timeout(options.timeout ?? TIMEOUT)]),
    })
    await reply.dump()
    return statusCode >= 200 && statusCode < 300
  } catch {
    return false
  }
}

/** Sends a message, with the same id in all attempts, until one succeeds. Never rejects. */
async function deliver(sender: Sender, lane: Lane, message: Message): Promise<WebhookOutcome> {
  const { options, stop, settings } = sender
  const { signal } = stop
  const { type, until = Number.POSITIVE_INFINITY } = message
  const id = `evt_${options.newId()}`
  const time = new Date(options.now()).toISOString()
  const { session_id: apiId } = message.body
  const page = typeof apiId === 'string' ? options.pageOf(apiId) : undefined
  const fields = { id, type, time, ...message.body, page }
  const body = JSON.stringify(WEBHOOK_FORMATS[settings.format ?? 'standard'](fields, message.body.text, page))
  for (const wait of [0, ...(options.backOff ?? BACK_OFF)]) {
    if (options.now() + wait >= until) return 'dropped'
    // The wait keeps no process alive, and ends when Governor closes.
    if (wait > 0) await pause(wait, undefined, { signal, ref: false }).catch(ignore)
    if (lane.open >= MAX_SENT) await new Promise<void>((begin) => lane.waiting.push(begin))
    else lane.open++
    const isLate = signal.aborted || options.now() >= until
    const isDelivered = !isLate && (await post(sender, id, body))
    const next = lane.waiting.shift()
    if (next) next()
    else lane.open--
    if (isDelivered) return 'delivered'
    if (isLate || signal.aborted) return 'dropped'
  }
  return 'failed'
}

async function send(sender: Sender, message: Message, subject: string): Promise<void> {
  const { questions, others, options, stop } = sender
  if (message.isShared) {
    // If the store fails, twice is better than never.
    const isFirst = await options.isFirst(subject).catch(() => true)
    if (!isFirst || stop.signal.aborted) return
  }
  const lane = message.until === undefined ? others : questions
  let outcome: WebhookOutcome = 'dropped'
  if (lane.held < MAX_QUEUE) {
    lane.held++
    outcome = await deliver(sender, lane, message)
    lane.held--
  }
  options.emit({ kind: 'webhook_sent', topic: message.type, outcome })
}

/** Creates a webhook that sends one message per subject, with retries. */
export function createWebhook(settings: WebhookSettings, options: WebhookOptions) {
  const sender = newSender(settings, options)
  const sent = new LRUCache<string, true>({ max: MAX_SUBJECTS })
  return {
    /** Queues a message if the receiver wants one about this event. Never throws and never waits. */
    record(event: ProxyEvent): void {
      const message = ROWS[event.kind].message?.(event)
      if (!message || !settings.on.includes(message.type)) return
      const subject = `${message.type} ${message.subject}`
      if (sent.has(subject)) return
      sent.set(subject, true)
      void send(sender, message, subject)
    },
    /** Drops the queue and aborts the current message. */
    close: () => sender.stop.abort(),
  }
}
