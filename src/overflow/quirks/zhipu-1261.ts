import type { Quirk } from '../quirk.ts'

export const zhipu1261: Quirk = {
  id: 'zhipu-1261',
  provider: 'Zhipu',
  claims: 'Code 1261, prompt too long; it states no number, and the digits in brackets are a time.',
  source: 'docs.bigmodel.cn error codes',
  read: (reply) =>
    (reply.codes.has('1261') || /\[1261\]/.test(reply.text)) && !/per minute/.test(reply.text)
      ? { recovery: 'compress_only' }
      : undefined,
  examples: [
    {
      status: 400,
      body: { error: { code: '1261', message: 'Prompt exceeds max length' } },
      means: 'compress_only',
    },
    {
      status: 400,
      body: {
        type: 'error',
        error: { type: 'invalid_request_error', message: '[1261][Prompt too long][2026010112]' },
      },
      means: 'compress_only',
    },
  ],
}
