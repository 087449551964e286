import type { Quirk } from '../quirk.ts'

const WORDS =
  /\b\d+(?:\.\d+)? ?(?:bytes?|kb|mb|gb|kib|mib|gib|characters?|chars)\b|payload|request entity too large|request_too_large|body (?:is |was )?too large|maximum (?:request |body )?size|message larger than max|header|buffer limit|member must have length|content[- ]length (?:exceeded|too)|number of characters|character limit|\bbytes\b/

export const bytes: Quirk = {
  id: 'bytes',
  provider: 'everyone',
  claims: 'Sizes of bodies, files and strings in bytes or characters.',
  source: 'HTTP 413 of gateways; Gemini payload size; gRPC message size',
  read: ({ text, status }) => {
    if (/\btokens?\b|context (?:length|window|size)/.test(text)) return undefined
    return WORDS.test(text) || (status === 413 && !/model|prompt|context|conversation/.test(text))
      ? 'none'
      : undefined
  },
  examples: [
    { status: 413, body: 'Payload Too Large', means: 'none' },
    {
      status: 400,
      body: {
        error: {
          code: 400,
          message: 'Request payload size exceeds the limit: 20971520 bytes',
          status: 'INVALID_ARGUMENT',
        },
      },
      means: 'none',
    },
    {
      status: 413,
      body: {
        type: 'error',
        error: { type: 'request_too_large', message: 'Request exceeds the maximum size' },
      },
      means: 'none',
    },
    {
      status: 400,
      body: { error: { message: 'Input exceeds the maximum length of 10000 characters.' } },
      means: 'none',
    },
  ],
}
