import { hasCode, type Quirk } from '../quirk.ts'

const CODES = new Set([
  'content_filter',
  'content_policy_violation',
  'responsibleaipolicyviolation',
  'data_inspection_failed',
])

const WORDS =
  /\bsafety\b(?! (?:margin|buffer|reserve|factor))|\bmoderation\b|content[ _](?:filter|policy|management)|\binappropriate\b|\brisk (?:score|level)|\b(?:was|been|is) flagged\b/

export const moderation: Quirk = {
  id: 'moderation',
  provider: 'everyone',
  claims: 'Filters of contents, whose scores exceed as well.',
  source: 'Azure content management policy; DashScope data_inspection_failed',
  read: (reply) => (hasCode(reply, CODES) || WORDS.test(reply.text) ? 'none' : undefined),
  examples: [
    {
      status: 400,
      body: { error: { code: 'content_filter', message: 'The prompt was flagged: score 0.98 > 0.9' } },
      means: 'none',
    },
  ],
}
