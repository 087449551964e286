import { overOutput } from '../../core/overflow.ts'
import { type Quirk, says } from '../quirk.ts'

export const vertexOutputRange: Quirk = {
  id: 'vertex-output-range',
  provider: 'Vertex AI',
  claims: 'maxOutputTokens outside a range whose end is exclusive.',
  source: 'cloud.google.com/vertex-ai: supported range',
  read: says(
    /maxoutputtokens value of \d+ but the supported range is from \d+ \(inclusive\) to (\d+) \((inclusive|exclusive)\)/,
    (end = 1) => overOutput(end - 1),
  ),
  examples: [
    {
      status: 400,
      body: {
        error: {
          code: 400,
          message:
            'Unable to submit request because it has a maxOutputTokens value of 9000 but the supported range is from 1 (inclusive) to 8193 (exclusive). Update the value and try again.',
        },
      },
      means: 'clamp_output_only',
      maxOutput: 8192,
    },
  ],
}
