import type { Quirk } from '../quirk.ts'

export const attachments: Quirk = {
  id: 'attachments',
  provider: 'Anthropic, OpenAI, Google',
  claims: 'Images, files and tools that are too large or too many.',
  source: 'docs.anthropic.com: image exceeds 5 MB maximum',
  read: ({ text }) =>
    /(?:image|pdf|file|audio|video|attachment|document)s?\b[^.\n]{0,60}(?:too (?:large|many|big)|exceeds?)|(?:audio|video|clip)s?\b[^.\n]{0,60}too long/.test(
      text,
    ) && !/\btokens?\b|context/.test(text)
      ? 'none'
      : undefined,
  examples: [
    {
      status: 400,
      body: {
        type: 'error',
        error: {
          type: 'invalid_request_error',
          message: 'messages.0.content.1.image: image exceeds the maximum allowed dimensions',
        },
      },
      means: 'none',
    },
  ],
}
