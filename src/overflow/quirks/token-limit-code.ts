import { withFields } from '../fields.ts'
import { hasCode, type Quirk } from '../quirk.ts'
import { readOverflow } from '../reader/reader.ts'

const CODES = new Set(['token_limit_exceeded', 'tokens_too_long', 'too_many_tokens_in_prompt'])

export const tokenLimitCode: Quirk = {
  id: 'token-limit-code',
  provider: 'Baidu Qianfan, Glean',
  claims: 'Codes by which tokens are too many, of a request unless the words are those of a quota.',
  source: 'cloud.baidu.com/doc/qianfan error codes; developers.glean.com/errors',
  read: (reply) =>
    hasCode(reply, CODES)
      ? withFields(reply, readOverflow(reply.text, true) ?? { recovery: 'compress_only' })
      : undefined,
  examples: [
    {
      status: 400,
      body: { error: { code: 'tokens_too_long', message: 'The tokens of the prompt are too long' } },
      means: 'compress_only',
    },
  ],
}
