import { inputTooLarge } from '../fields.ts'
import { namesCode, type Quirk } from '../quirk.ts'

/** `context_length_exceeded`, `ContextWindowExceededError`, `context_too_large`: without case and what joins words. */
const CODES =
  /context(?:length|window|size|limit|tokens?|tokenlimit|tokencount)?(?:toolong|toolarge|toobig|exceed|overflow|limitexceeded|limitreached)|context(?:length|window|size)failed|exceed(?:s|ed)?(?:max)?context|outofcontext/

export const contextLengthCode: Quirk = {
  id: 'context-length-code',
  provider: 'OpenAI and those that took its API over',
  claims: 'Codes that say by themselves that the context is exceeded; numbers, if any, are in the message.',
  source: 'platform.openai.com error code context_length_exceeded; the same under other names elsewhere',
  read: (reply) => {
    // What is too long to be paid for is not too long.
    if (reply.status === 402 || !namesCode(reply, CODES)) return undefined
    return inputTooLarge(reply)
  },
  examples: [
    {
      status: 400,
      body: {
        error: {
          message: 'Your input exceeds the context window of this model.',
          code: 'context_length_exceeded',
        },
      },
      means: 'compress_only',
    },
    {
      status: 400,
      body: {
        error: {
          message:
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
          code: 'context_length_exceeded',
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9000,
    },
    {
      status: 200,
      body: {
        type: 'response.failed',
        response: { status: 'failed', error: { code: 'context_length_exceeded', message: 'Too long.' } },
      },
      means: 'compress_only',
    },
    {
      status: 400,
      body: {
        error: {
          message: 'Please reduce the length of the messages or completion.',
          code: 'context_length_exceeded',
          type: 'invalid_request_error',
        },
      },
      means: 'compress_only',
    },
  ],
}
