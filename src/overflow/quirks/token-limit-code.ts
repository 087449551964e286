import { inputTooLarge } from '../fields.ts'
import { hasCode, namesCode, type Quirk } from '../quirk.ts'

const CODES = new Set(['token_limit_exceeded', 'tokens_too_long', 'too_many_tokens_in_prompt'])

/** `input_token_limit_exceeded`, `PromptLengthExceeded`, `input_too_large`: of what is no picture and no file. */
const INPUT_CODES =
  /(?<!image|audio|video|file)(?:prompt|input)(?:length|size|limit|tokens?|tokenlimit|tokencount)?(?:toolong|toolarge|toobig|exceed|overflow|limitexceeded|limitreached)/

export const tokenLimitCode: Quirk = {
  id: 'token-limit-code',
  provider: 'Baidu Qianfan, Glean',
  claims:
    'Codes by which tokens or an input are too many, of a request unless the words are those of a quota.',
  source: 'cloud.baidu.com/doc/qianfan error codes; developers.glean.com/errors',
  read: (reply) =>
    hasCode(reply, CODES) || namesCode(reply, INPUT_CODES) ? inputTooLarge(reply) : undefined,
  examples: [
    {
      status: 400,
      body: { error: { code: 'tokens_too_long', message: 'The tokens of the prompt are too long' } },
      means: 'compress_only',
    },
  ],
}
