import { overInput } from '../../core/overflow.ts'
import { oneOf, type Quirk, says } from '../quirk.ts'

export const bedrockNova: Quirk = {
  id: 'bedrock-nova',
  provider: 'Amazon Nova',
  claims: 'Input tokens against the maximum.',
  source: 'docs.aws.amazon.com/nova',
  read: oneOf(
    says(
      /too many input tokens\. max input tokens: (\d+), request input token count: (\d+)/,
      (limit, prompt) => overInput(limit, prompt),
    ),
    says(/number of input tokens exceeds maximum length/, () => ({ recovery: 'compress_only' })),
  ),
  examples: [
    {
      status: 400,
      body: { message: 'Too many input tokens. Max input tokens: 128000, request input token count: 140000' },
      means: 'shrink_context',
      limit: 128000,
      promptTokens: 140000,
    },
    {
      status: 400,
      body: {
        message:
          'Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.',
      },
      means: 'compress_only',
    },
  ],
}
