import { hasCode, type Quirk } from '../quirk.ts'

const CODES = new Set([
  'rate_limit_error',
  'rate_limit_exceeded',
  'rate_limited',
  'ratelimitexceeded',
  'throttling_error',
  'throttlingexception',
  'throttling',
  'resource_exhausted',
  'too_many_requests',
  'overloaded_error',
  'insufficient_quota',
  'exceeded_current_quota_error',
  'quota_exceeded',
  // MiniMax: requests and tokens per minute.
  '1002',
  '1039',
])

const WORDS =
  /\b(?:tokens?|requests?|characters?)[ -](?:per|\/)[ -]?(?:minute|min|day|hour|second)|\b(?:tpm|rpm|tpd|rpd|itpm|otpm)\b|\bper[ -](?:minute|day|hour|second)\b|rate[ _-]?limit|too many (?:concurrent )?requests|throttl|\bquota\b|(?:daily|weekly|monthly|hourly|usage) (?:\w+ )?(?:limit|allowance)|high demand|overloaded|peak load|please wait|try again (?:later|in \d|once|after|when)|\benqueued\b|\b(?:used|tokens|limit|quota) (?:for )?(?:today|this (?:hour|day|week|month))\b|\bresets? (?:at|in|on|after)\b|retry (?:after|in|shortly)|concurren(?:t|cy)|slow down|right now|\bat once\b|频率限制|速率限制|每分钟/

export const rateLimit: Quirk = {
  id: 'rate-limit',
  provider: 'everyone',
  claims: 'Tokens per minute, quotas and overload: too much for now, not too long.',
  source: 'OpenAI, Azure, Anthropic, Groq, Bedrock and Google rate limit errors',
  read: (reply) =>
    reply.status === 429 || reply.status === 529 || hasCode(reply, CODES) || WORDS.test(reply.text)
      ? 'none'
      : undefined,
  examples: [
    {
      status: 429,
      body: {
        type: 'error',
        error: {
          type: 'rate_limit_error',
          message:
            'This request would exceed the rate limit for your organization of 40,000 input tokens per minute.',
        },
      },
      means: 'none',
    },
    { status: 400, body: { message: 'Too many tokens, please wait before trying again.' }, means: 'none' },
    {
      status: 413,
      body: {
        error: {
          message:
            'Request too large for model in organization on tokens per minute (TPM): Limit 6000, Requested 9001',
          type: 'tokens',
          code: 'rate_limit_exceeded',
        },
      },
      means: 'none',
    },
    { status: 200, body: { error: { type: 'overloaded_error', message: 'Overloaded' } }, means: 'none' },
  ],
}
