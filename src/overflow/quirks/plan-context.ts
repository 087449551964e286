import { type Quirk, says } from '../quirk.ts'

export const planContext: Quirk = {
  id: 'plan-context',
  provider: 'several',
  claims: 'The plan takes less context than the request asks for, and another one would take it.',
  source: 'wordings of coding plans and gateways',
  read: says(
    /(?:context|prompts?|requests?)[^.\n]{0,50}(?:over|above|beyond|larger than|longer than|more than|exceed(?:s|ing)?) \d{4,9}(?! ?(?:tokens? )?(?:per|\/|requests?))(?: tokens)?[^.\n]{0,40}(?:(?:your|this|current|the current) (?:plan|tier|subscription)|usage tier|(?:pro|max|paid|enterprise) (?:plan|tier|subscribers))|(?:plan|tier|subscription) (?:does not|doesn't|do not) (?:include|support|allow|cover|have access to)[^.\n]{0,30}(?:long|1m|1000000|extended|larger)[ -](?:token )?context|(?:upgrade|higher tier)[^.\n]{0,40}(?:long|1m|1000000)[ -](?:token )?context/,
    () => ({ recovery: 'tier_downgrade' }),
  ),
  examples: [
    {
      status: 403,
      body: { error: { message: 'Requests over 200K tokens are only available on the Max plan' } },
      means: 'tier_downgrade',
    },
    {
      status: 400,
      body: { error: { message: 'Your plan does not include long context. Upgrade to use it.' } },
      means: 'tier_downgrade',
    },
  ],
}
