import { type Quirk, says } from '../quirk.ts'

export const bedrockMaxLength: Quirk = {
  id: 'bedrock-max-length',
  provider: 'Amazon Bedrock',
  claims: 'The input in characters is longer than the schema of the model allows: no window to learn.',
  source: 'docs.aws.amazon.com/bedrock: Malformed input request, expected maxLength',
  read: says(/expected maxlength: ?\d+, actual: ?\d+/, () => ({ recovery: 'compress_only' })),
  examples: [
    {
      status: 400,
      body: {
        message:
          'Malformed input request: expected maxLength: 50000, actual: 61000, please reformat your input and try again.',
      },
      means: 'compress_only',
    },
  ],
}
