/** What a user knows better of a model than the catalogue. */
import * as z from 'zod'

const perMillion = z.number().min(0)

export const models = z
  .array(
    z
      .strictObject({
        model: z.string().min(1).describe('Glob of model names, as clients send them.'),
        upstream: z.string().min(1).optional().describe('Name of one upstream; without it, at all of them.'),
        context_window: z.int().min(1).optional().describe('Tokens of prompt and answer together.'),
        price: z
          .strictObject({
            input: perMillion.describe('Of the prompt.'),
            output: perMillion.describe('Of the answer, reasoning included.'),
            cached_input: perMillion
              .optional()
              .describe('Of what was read from a cache; without it, as input.'),
            cache_write: perMillion
              .optional()
              .describe('Of what was written to a cache; without it, as input.'),
          })
          .optional()
          .describe('US dollars per million tokens; 0 where a model costs nothing.'),
      })
      .refine((value) => value.context_window !== undefined || value.price !== undefined, {
        error: 'says nothing: expected a price, a context_window, or both',
      }),
  )
  .default([])
  .describe(
    'Prices and context windows of models, before those that Governor knows. For each of the two the first entry that matches and has one counts.',
  )
