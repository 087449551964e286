import { type Quirk, says } from '../quirk.ts'

export const volcengineMessageTokens: Quirk = {
  id: 'volcengine-message-tokens',
  provider: 'Volcengine',
  claims: 'Text and images are over the message tokens, without a number.',
  source: 'volcengine.com/docs/82379 error codes',
  read: says(/total tokens of (?:image and text|text and image) exceed max message tokens/, () => ({
    recovery: 'compress_only',
  })),
  examples: [
    {
      status: 400,
      body: {
        error: {
          message: 'Total tokens of image and text exceed max message tokens. Request id: 1',
          code: 'InvalidParameter',
        },
      },
      means: 'compress_only',
    },
  ],
}
