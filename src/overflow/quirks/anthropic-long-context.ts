import { type Quirk, says } from '../quirk.ts'

export const anthropicLongContext: Quirk = {
  id: 'anthropic-long-context',
  provider: 'Anthropic',
  claims: 'Long context is not part of the subscription, the tier or the beta.',
  source: 'anthropics/claude-code#6871, #53607',
  read: says(
    /context-\d*(?:1m|000)[^.\n]{0,60}not |(?:long|1m|1000000|extended)[ -](?:token )?context[^.\n]{0,60}(?:not (?:yet )?(?:available|enabled|supported|included)|only available|requires?|\bbeta\b)|(?:extra usage|usage credits?|credits?)[^.\n]{0,30}required[^.\n]{0,30}(?:long|1m|1000000)[ -](?:token )?context/,
    () => ({ recovery: 'tier_downgrade' }),
  ),
  examples: [
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message: 'The long context beta is not yet available for this subscription.',
        },
      },
      means: 'tier_downgrade',
    },
    {
      status: 429,
      body: {
        type: 'error',
        error: { type: 'rate_limit_error', message: 'Extra usage is required for long context requests.' },
      },
      means: 'tier_downgrade',
    },
    {
      status: 400,
      body: { error: { message: '1M context is not enabled for this organization' } },
      means: 'tier_downgrade',
    },
  ],
}
