import { type Quirk, says } from '../quirk.ts'

export const bedrockInput: Quirk = {
  id: 'bedrock-input',
  provider: 'Amazon Bedrock',
  claims: 'The input is too long for the model.',
  source: 'docs.aws.amazon.com/bedrock, ValidationException',
  read: says(/input is too long for (?:the )?requested model/, () => ({ recovery: 'compress_only' })),
  examples: [
    { status: 400, body: { message: 'Input is too long for requested model.' }, means: 'compress_only' },
  ],
}
