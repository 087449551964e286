import { overInput } from '../../core/overflow.ts'
import { hasCode, type Quirk } from '../quirk.ts'
import { readOverflow } from '../reader/reader.ts'

const CODES = new Set(['exceed_context_size_error'])

export const llamacppFields: Quirk = {
  id: 'llamacpp-fields',
  provider: 'llama.cpp',
  claims: 'The fields n_ctx and n_prompt_tokens of an exceed_context_size_error.',
  source: 'ggml-org/llama.cpp tools/server: exceed_context_size_error',
  read: (reply) => {
    if (!hasCode(reply, CODES)) return undefined
    const limit = reply.numbers.get('n_ctx')
    return limit === undefined
      ? readOverflow(reply.text, true)
      : overInput(limit, reply.numbers.get('n_prompt_tokens'))
  },
  examples: [
    {
      status: 400,
      body: {
        error: {
          code: 400,
          type: 'exceed_context_size_error',
          message: 'request exceeds the available context size',
          n_prompt_tokens: 9001,
          n_ctx: 8192,
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
    {
      status: 400,
      body: {
        error: {
          code: 400,
          type: 'exceed_context_size_error',
          message: 'request (9001 tokens) exceeds the available context size (8192 tokens)',
        },
      },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
  ],
}
