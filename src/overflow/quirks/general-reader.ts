import { withFields } from '../fields.ts'
import type { Quirk } from '../quirk.ts'
import { readOverflow } from '../reader/reader.ts'

export const generalReader: Quirk = {
  id: 'general-reader',
  provider: 'anybody',
  claims: 'Any sentence that says that a context, an input or an output is too much.',
  source: 'tables of the words by which providers say so',
  read: (reply) => {
    const overflow = readOverflow(reply.text)
    return overflow && withFields(reply, overflow)
  },
  examples: [
    {
      status: 400,
      body: { error: { message: 'You sent 140,000 tokens; we accept 131 072 at most.' } },
      means: 'shrink_context',
      limit: 131072,
      promptTokens: 140000,
    },
    {
      status: 400,
      body: { detail: 'Conversation exceeds the 32k context window by 1,200 tokens' },
      means: 'shrink_context',
      limit: 32000,
      overflowBy: 1200,
    },
    {
      status: 400,
      body: { error: 'Eingabe zu lang: 9001 Tokens, maximal 8192 Tokens erlaubt' },
      means: 'shrink_context',
      limit: 8192,
      promptTokens: 9001,
    },
    { status: 400, body: { error: { message: '上下文长度超出模型最大限制' } }, means: 'compress_only' },
  ],
}
