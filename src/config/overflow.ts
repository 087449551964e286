/** What becomes of requests that are too large. */
import * as z from 'zod'
import { RECOVERIES } from '../core/overflow.ts'
import { linearPattern } from '../overflow/pattern.ts'
import { duration } from './units.ts'

function patternFault(source: string): string | undefined {
  try {
    linearPattern(source)
    return undefined
  } catch (error) {
    return (error as Error).message
  }
}

const quirk = z.strictObject({
  id: z
    .string()
    .regex(/^[a-z0-9][a-z0-9-]{0,63}$/, 'expected a name of small letters, digits and -')
    .describe('Names it in replies and metrics.'),
  match: z
    .strictObject({
      status: z.int().min(200).max(599).optional().describe('HTTP status.'),
      code: z.string().min(1).optional().describe('A code or type in the fields of the error.'),
      text: z
        .string()
        .min(1)
        .superRefine((source, context) => {
          const fault = patternFault(source)
          if (fault !== undefined)
            context.addIssue({ code: 'custom', message: `no pattern of RE2's syntax: ${fault}` })
        })
        .optional()
        .describe(
          "A regular expression (RE2's syntax, which no text can make slow) that the message holds, whatever its case.",
        ),
    })
    .refine((match) => Object.values(match).some((value) => value !== undefined), {
      error: 'matches everything: expected a status, a code or a text',
    })
    .describe('What the error must have; all that is given must match.'),
  recovery: z
    .enum([...RECOVERIES, 'not_overflow'])
    .describe('What it means. not_overflow: it only looks like one.'),
  limit_from: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Where the limit stands: a named group of match.text, or the name of a field of the error. Without it, it is read from the message.',
    ),
})

export const overflow = z.strictObject({
  enabled: z.boolean().default(true).describe('Off: errors are relayed unread.'),
  canonical: z
    .boolean()
    .default(false)
    .describe(
      "Rewrite errors about an input that is too large into the one that the API's own clients understand (context_length_exceeded; Anthropic: prompt is too long), the original under error.governor.original. For clients that compress by themselves but know one provider only.",
    ),
  clamp_output_only: z
    .enum(['retry', 'annotate'])
    .default('retry')
    .describe(
      'Where only the output that was asked for is too large. retry: ask once more with what fits; annotate: only say so.',
    ),
  tier_downgrade: z
    .enum(['retry_without_beta', 'annotate'])
    .default('retry_without_beta')
    .describe(
      'Where long context is not part of the plan. retry_without_beta: ask once more without the anthropic-beta of long context, if the request fits without; annotate: only say so.',
    ),
  effective_ttl: duration
    .prefault('1h')
    .describe('How long a session goes on with a smaller context after a refusal.'),
  quirks: z
    .array(quirk)
    .default([])
    .describe(
      'Errors of providers that Governor does not know, or takes for something else. Before those it knows.',
    ),
})
