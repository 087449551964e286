import type { Quirk } from '../quirk.ts'

const WORDS =
  /\bcredits?\b|can only afford|\bbilling\b|insufficient (?:balance|funds)|\bbalance\b|payment required|package has expired|spend(?:ing)? limit|余额/

export const credits: Quirk = {
  id: 'credits',
  provider: 'OpenRouter and resellers',
  claims: 'What can be paid for, written like an overflow.',
  source: 'OpenRouter 402; opencode zen CreditLimitExceeded',
  read: (reply) => (reply.status === 402 || WORDS.test(reply.text) ? 'none' : undefined),
  examples: [
    {
      status: 402,
      body: {
        error: {
          message: 'Prompt tokens limit exceeded: 9001 > 8000. To increase, visit the settings and upgrade.',
          code: 402,
        },
      },
      means: 'none',
    },
    {
      status: 400,
      body: {
        error: {
          message:
            'This request requires more credits, or fewer max_tokens. You requested up to 9001 tokens, but can only afford 8000.',
        },
      },
      means: 'none',
    },
  ],
}
