import { overOutput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const bedrockOutputBound: Quirk = {
  id: 'bedrock-output-bound',
  provider: 'Amazon Bedrock',
  claims: 'The maximum tokens asked for, over the limit of the model.',
  source: 'docs.aws.amazon.com/bedrock, Converse',
  read: says(/maximum tokens you requested exceeds? the model limit of (\d+)/, (most) => overOutput(most)),
  examples: [
    {
      status: 400,
      body: {
        message:
          'The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower than 4096.',
      },
      means: 'clamp_output_only',
      maxOutput: 4096,
    },
  ],
}
