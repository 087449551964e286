/**
 * Sends messages to the user's receiver about events that need a human. They are signed as https://www.standardwebhooks.com
 * describes, so that its libraries verify them. They never delay a request: they wait in a bounded queue.
 */
import { createHmac } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { request } from 'undici'
import type { Emit, ProxyEvent, WebhookOutcome, WebhookTopic } from './event.ts'

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

interface Message {
  readonly type: WebhookTopic
  /** Identifies the occasion: a second message with the same subject is not sent. */
  readonly subject: string
  /** One sentence for people; Slack and others show this field. */
  readonly text: string
  readonly session?: string | undefined
  readonly [detail: string]: string | number | undefined
}

const TIMEOUT = 2_000
const BACK_OFF = [1_000, 5_000, 25_000]
const MAX_QUEUE = 1_000
/** The most subjects that are remembered as sent. */
const MAX_SUBJECTS = 10_000
const PREFIX = 'whsec_'

const MAX_NAME = 64

/**
 * Returns a name that a client or a model chose, for a sentence: short, and without what turns text around or means something
 * to a chat: Slack tells everybody in a channel of `<!channel>`.
 */
function plain(name: string): string {
  return name.slice(0, MAX_NAME).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}<>&]/gu, '·')
}

/** Returns the message about an event; `undefined` for events that need no human. */
function messageOf(event: ProxyEvent): Message | undefined {
  switch (event.kind) {
    case 'request_ended':
      return messageOfRequest(event)
    case 'stopped': {
      if (event.by === 'agent') return undefined
      const { session, reason } = event
      const text = `Governor stopped a run of session ${plain(session)}: ${reason}.`
      return { type: 'stopped', subject: `${session} ${reason}`, text, session, reason }
    }
    case 'call_blocked': {
      const { session, pattern, tool } = event
      const text = `Governor blocked a repeated call of ${plain(tool)} in session ${plain(session ?? '')}.`
      return { type: 'loop_blocked', subject: `${session} ${pattern}`, text, session, loop: pattern, tool }
    }
    case 'overflow': {
      const { upstream, recovery, session } = event
      const of = session === undefined ? '' : ` of session ${plain(session)}`
      const text = `A request${of} to ${upstream} was too large: ${recovery}.`
      const subject = `${session ?? ''} ${upstream} ${recovery}`
      return { type: 'overflow', subject, text, session, upstream, recovery }
    }
    case 'storm_answered': {
      const { upstream, status } = event
      const text = `${upstream} answers with errors only; agents get ${status} at once and wait.`
      return { type: 'error_storm', subject: upstream, text, upstream, status }
    }
    case 'operator_asked': {
      const { session, meter, used, max, seconds } = event
      const text = `A run of session ${plain(session ?? '')} has reached a limit (${meter}: ${used} of ${max}). It waits ${seconds} s for an operator to extend or stop it.`
      return {
        type: 'asking',
        subject: `${session} ${meter} ${max}`,
        text,
        session,
        meter,
        used,
        max,
        seconds,
      }
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
  const { session, tier, meter, verdict, iteration, maxIterations } = event
  if (session === undefined) return undefined
  if (verdict !== 'warn' || tier === undefined) return undefined
  const place = maxIterations === undefined ? `${iteration}` : `${iteration} of ${maxIterations}`
  const text = `Session ${plain(session)} is near its limit of ${meter ?? 'iterations'} (${tier}): iteration ${place}.`
  const subject = `${session} ${tier}`
  return { type: 'near_limit', subject, text, session, tier, meter, iteration, maxIterations }
}

/** Returns the key of a secret: decoded from base64 after the standard's prefix, else the text itself. */
function keyOf(secret: string): Buffer {
  return secret.startsWith(PREFIX) ? Buffer.from(secret.slice(PREFIX.length), 'base64') : Buffer.from(secret)
}

/** Returns the value of `webhook-signature` for a body: HMAC-SHA256 over id, timestamp (seconds) and body. */
function signatureOf(secret: string, id: string, timestamp: number, body: string): string {
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

/** Returns true if the receiver answered with 2xx within two seconds. A redirect is not followed. */
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
    // The wait keeps no process alive, and ends when Governor closes.
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

/** Creates a webhook that sends one message per subject, one after the other, with retries. */
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
