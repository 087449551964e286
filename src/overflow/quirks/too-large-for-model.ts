import { type Quirk, says } from '../quirk.ts'

export const tooLargeForModel: Quirk = {
  id: 'too-large-for-model',
  provider: 'gateways',
  claims: 'The request is too large for the model: tokens or bytes, nobody says.',
  source: 'wordings of proxies',
  read: says(/request (?:is )?too large for (?:the |this )?model\b/, () => ({
    recovery: 'unknown_overflow',
  })),
  examples: [
    { status: 413, body: { error: { message: 'request too large for model' } }, means: 'unknown_overflow' },
  ],
}
