import { overWindow } from '../../core/overflow.ts'
import type { Quirk } from '../quirk.ts'

export const openrouterSplit: Quirk = {
  id: 'openrouter-split',
  provider: 'OpenRouter',
  claims: 'Text, tools and output, each with its number.',
  source: 'openrouter.ai: maximum context length of an endpoint',
  read: ({ text }) => {
    const [, limit, parts] =
      /endpoint's maximum context length is (\d+) tokens\. however, you requested about \d+ tokens \(([^)]{1,200})\)/.exec(
        text,
      ) ?? []
    if (limit === undefined || parts === undefined) return undefined
    const inputs = [...parts.matchAll(/(\d+) of \w+ input/g)].reduce(
      (sum, [, count]) => sum + Number(count),
      0,
    )
    return overWindow(inputs, Number(limit))
  },
  examples: [
    {
      status: 400,
      body: {
        error: {
          message:
            "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (30000 of text input, 1000 of tool input, 9000 in the output).",
          code: 400,
        },
      },
      means: 'clamp_output_only',
      limit: 32768,
      promptTokens: 31000,
      maxOutput: 1768,
    },
    {
      status: 400,
      body: {
        error: {
          message: 'Provider returned error',
          code: 400,
          metadata: {
            raw: '{"error": {"message": "This endpoint\'s maximum context length is 32768 tokens. However, you requested about 40000 tokens (40000 of text input)."}}',
          },
        },
      },
      means: 'shrink_context',
      limit: 32768,
      promptTokens: 40000,
    },
  ],
}
