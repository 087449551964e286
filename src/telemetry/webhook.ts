/**
 * Tells a receiver of the user's about what needs a person: signed as https://www.standardwebhooks.com describes it, so that its
 * libraries verify it. Nothing here delays a request: messages wait in a bounded queue.
 */
import { createHmac } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { request } from 'undici'
import type { Emit, ProxyEvent, WebhookOutcome, WebhookTopic } from './event.ts'

export interface WebhookSettings {
  readonly url: string
  readonly secret: string
  readonly on: readonly WebhookTopic[]
}

export interface WebhookOptions {
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** A fresh random id. */
  readonly newId: () => string
  /** Gets what became of each message. */
  readonly emit: Emit
  /** Milliseconds to wait before each further attempt; there are as many as there are entries. */
  readonly backOff?: readonly number[]
}

export interface Webhook {
  /** Queues a message where the event is one that the receiver asked for. Never throws and never waits. */
  record(event: ProxyEvent): void
  /** Drops what is queued and aborts what is being sent. */
  close(): void
}

interface Message {
  readonly type: WebhookTopic
  /** What the message is about; a second one about the same is not sent. */
  readonly subject: string
  /** One sentence for people; Slack and others show this field. */
  readonly text: string
  readonly session?: string | undefined
  readonly [detail: string]: string | number | undefined
}

const TIMEOUT = 2_000
const BACK_OFF = [1_000, 5_000, 25_000]
const MAX_QUEUE = 1_000
/** So many subjects are remembered that a message was sent about. */
const MAX_SUBJECTS = 10_000
const PREFIX = 'whsec_'

/** Returns the message for an event; `undefined` for events that need no person. */
function messageOf(event: ProxyEvent): Message | undefined {
  switch (event.kind) {
    case 'request_ended':
      return messageOfRequest(event)
    case 'stopped': {
      if (event.by === 'agent') return undefined
      const { session, reason } = event
      const text = `Governor stopped a run of session ${session}: ${reason}.`
      return { type: 'stopped', subject: `${session} ${reason}`, text, session, reason }
    }
    case 'overflow': {
      const { upstream, recovery } = event
      const text = `A request to ${upstream} was too large: ${recovery}.`
      return { type: 'overflow', subject: `${upstream} ${recovery}`, text, upstream, recovery }
    }
    case 'storm_answered': {
      const { upstream, status } = event
      const text = `${upstream} answers with errors only; agents get ${status} at once and wait.`
      return { type: 'error_storm', subject: upstream, text, upstream, status }
    }
    case 'failed_open': {
      if (event.reason !== 'store') return undefined
      const text = 'The session store fails: Governor counts from transcripts and memory alone.'
      return { type: 'degraded', subject: 'store', text }
    }
    default:
      return undefined
  }
}

function messageOfRequest(event: Extract<ProxyEvent, { kind: 'request_ended' }>): Message | undefined {
  const { session, tier, verdict, loop, iteration, maxIterations } = event
  if (session === undefined) return undefined
  if (verdict === 'block') {
    const text = `Governor blocked a repeated tool call of session ${session}.`
    return { type: 'loop_blocked', subject: `${session} ${loop}`, text, session, loop }
  }
  if (verdict !== 'warn' || tier === undefined) return undefined
  const place = maxIterations === undefined ? `${iteration}` : `${iteration} of ${maxIterations}`
  const text = `Session ${session} is near its limit (${tier}): iteration ${place}.`
  return { type: 'near_limit', subject: `${session} ${tier}`, text, session, tier, iteration, maxIterations }
}

/** The key of a secret: base64 after the prefix that the standard gives it, else the text itself. */
function keyOf(secret: string): Buffer {
  return secret.startsWith(PREFIX) ? Buffer.from(secret.slice(PREFIX.length), 'base64') : Buffer.from(secret)
}

/** Returns the value of `webhook-signature` for a body: HMAC-SHA256 over id, timestamp (seconds) and body. */
export function signatureOf(secret: string, id: string, timestamp: number, body: string): string {
  const digest = createHmac('sha256', keyOf(secret)).update(`${id}.${timestamp}.${body}`).digest('base64')
  return `v1,${digest}`
}

interface Sender {
  readonly settings: WebhookSettings
  readonly options: WebhookOptions
  readonly queue: Message[]
  readonly sent: LRUCache<string, true>
  readonly stop: AbortController
  isSending: boolean
}

/** Returns whether the receiver took the message: it answered with 2xx within two seconds. A redirect is not followed. */
async function post(
  { settings, stop }: Sender,
  id: string,
  timestamp: number,
  body: string,
): Promise<boolean> {
  try {
    const { statusCode, body: reply } = await request(settings.url, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'webhook-id': id,
        'webhook-timestamp': String(timestamp),
        'webhook-signature': signatureOf(settings.secret, id, timestamp, body),
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

async function deliver(
  sender: Sender,
  { type, subject: _subject, ...details }: Message,
): Promise<WebhookOutcome> {
  const { options, stop } = sender
  const id = `evt_${options.newId()}`
  const time = options.now()
  const body = JSON.stringify({ id, type, time: new Date(time).toISOString(), ...details })
  for (const ms of [0, ...(options.backOff ?? BACK_OFF)]) {
    // The wait keeps no process alive; when Governor ends, it is over.
    if (ms > 0) await pause(ms, undefined, { signal: stop.signal, ref: false }).catch(() => undefined)
    if (stop.signal.aborted) return 'dropped'
    if (await post(sender, id, Math.floor(options.now() / 1_000), body)) return 'delivered'
  }
  return 'failed'
}

async function sendQueue(sender: Sender): Promise<void> {
  if (sender.isSending) return
  sender.isSending = true
  for (let message = sender.queue.shift(); message; message = sender.queue.shift())
    sender.options.emit({
      kind: 'webhook_sent',
      topic: message.type,
      outcome: await deliver(sender, message),
    })
  sender.isSending = false
}

/** Returns a webhook that sends one message per subject, one after the other, with retries. */
export function createWebhook(settings: WebhookSettings, options: WebhookOptions): Webhook {
  const sender: Sender = {
    settings,
    options,
    queue: [],
    sent: new LRUCache({ max: MAX_SUBJECTS }),
    stop: new AbortController(),
    isSending: false,
  }
  return {
    record(event) {
      const message = messageOf(event)
      if (!message || !settings.on.includes(message.type)) return
      const subject = `${message.type} ${message.subject}`
      if (sender.sent.has(subject)) return
      sender.sent.set(subject, true)
      if (sender.queue.length >= MAX_QUEUE)
        return options.emit({ kind: 'webhook_sent', topic: message.type, outcome: 'dropped' })
      sender.queue.push(message)
      void sendQueue(sender)
    },
    close() {
      sender.queue.length = 0
      sender.stop.abort()
    },
  }
}
