/** The settings of receivers of events, besides log and metrics. */
import * as z from 'zod'
import { SECRET_PREFIX, WEBHOOK_TOPICS, type WebhookTopic } from '../telemetry/event.ts'
import { address, key, optional } from './units.ts'

const TOPICS = Object.keys(WEBHOOK_TOPICS) as WebhookTopic[]

const webhook = z.strictObject({
  url: address('https://hooks.example/governor').describe(
    'Address to which Governor posts messages about events that need a person, as JSON. Without an address it ' +
      'posts nothing. It follows no redirect.',
  ),
  secret: optional(
    z
      .string()
      .min(16, 'expected at least 16 characters')
      .refine((secret) => {
        if (!secret.startsWith(SECRET_PREFIX)) return true
        const unpadded = secret.slice(SECRET_PREFIX.length).replace(/={1,2}$/, '')
        const bytes = Buffer.from(unpadded, 'base64')
        return bytes.length >= 16 && bytes.toString('base64').replace(/={1,2}$/, '') === unpadded
      }, 'expected base64 of at least 16 bytes after whsec_'),
    '$' + '{GOVERNOR_WEBHOOK_SECRET}',
  ).describe(
    'Key of the signature in `webhook-signature` (HMAC-SHA256, as standardwebhooks.com describes it): text, or ' +
      '`whsec_` and base64.',
  ),
  on: key(z.array(z.enum(TOPICS)).min(1), TOPICS).describe(
    'Topics of the messages; there is one message per session and threshold. They are: ' +
      `${Object.values(WEBHOOK_TOPICS).join(', ')}.`,
  ),
})

export const events = z.strictObject({
  webhook: webhook
    .refine(
      ({ url, secret }) => url === undefined || secret !== undefined,
      'has a url and no secret: receivers could not tell the messages from forged ones',
    )
    .prefault({})
    .describe('A receiver of messages.'),
})
