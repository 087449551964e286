/** The settings for requests that are too large. */

import { RE2JS } from 're2js'
import * as z from 'zod'
import { errorOf } from '../core/thrown.ts'
import { RECOVERIES } from '../overflow/meaning.ts'
import type { LinearPattern, Row } from '../overflow/rows.ts'
import { choice, duration, flag, key, optional } from './units.ts'

/** A pattern that ignores case; refuses one that only a backtracking engine could match. */
const pattern = z
  .string()
  .min(1)
  .transform((source, context): LinearPattern => {
    try {
      const compiled = RE2JS.compile(source, RE2JS.CASE_INSENSITIVE)
      const groups = Object.keys(compiled.namedGroups())
      return {
        match(text) {
          const matcher = compiled.matcher(text)
          if (!matcher.find()) return undefined
          return Object.fromEntries(groups.map((name) => [name, matcher.group(name) ?? undefined]))
        },
      }
    } catch (error) {
      const message = `not a pattern in RE2's syntax: ${errorOf(error).message}`
      context.addIssue({ code: 'custom', message })
      return z.NEVER
    }
  })

/** Each error is held against all rows, and a reload compiles all patterns while everything else waits. */
const MAX_QUIRKS = 1_000

const status = z.int().min(200).max(599)

const quirk = z
  .strictObject({
    id: z
      .string()
      .regex(/^[a-z0-9][a-z0-9-]{0,63}$/, 'expected a name of small letters, digits and -')
      .describe('Name of the row in replies and metrics. Several ways to say one thing are several rows with one id.'),
    source: optional(z.string()).describe('Where the wording is documented or was seen.'),
    status: optional(
      z.union([status, z.array(status).min(1)], 'expected an HTTP status from 200 to 599, or a list'),
    ).describe('HTTP status, or a list of them.'),
    code: optional(pattern).describe("Pattern (RE2's syntax, any case) of a code or type in the fields of the error."),
    text: optional(pattern).describe(
      "Pattern (RE2's syntax, which no text can make slow, any case) that the message matches. The groups " +
        '(?<limit>) and (?<prompt>) are numbers of tokens; Governor reads the numbers that shrink_context and ' +
        'clamp_output_only need from the message if the pattern does not name them.',
    ),
    unless: optional(pattern).describe('Pattern that the message does not match.'),
    means: z
      .enum([...RECOVERIES, 'not_overflow', 'input_too_large'])
      .describe(
        'What the error means: shrink_context, compress_only, clamp_output_only, tier_downgrade, unknown_overflow, ' +
          'loop_refused (the provider refuses repeated calls), not_overflow (it only looks like one) or ' +
          'input_too_large (Governor reads the rest from the words of the message).',
      ),
  })
  .refine(
    ({ status, code, text }) => status !== undefined || code !== undefined || text !== undefined,
    'matches everything: expected a status, a code or a text',
  )
  .transform((row): Row => ({ ...row, status: typeof row.status === 'number' ? [row.status] : row.status }))

const EXAMPLE: z.input<typeof quirk> = {
  id: 'house-gateway',
  source: 'our wiki, Limits of the gateway',
  status: 400,
  text: 'budget of (?<limit>[\\d,]+) units',
  means: 'shrink_context',
}

export const overflow = z.strictObject({
  enabled: flag(true).describe('Read errors. false: Governor relays errors unread.'),
  canonical: flag(false).describe(
    "Rewrite errors about an input that is too large into the one that the API's own clients understand. That is " +
      'context_length_exceeded, or prompt is too long for Anthropic; the original is in error.governor.original. For ' +
      'clients that compress by themselves but know only one provider.',
  ),
  clamp_output_only: choice(['retry', 'annotate'], 'retry').describe(
    'What happens if only the requested output is too large. retry: ask once more with a cap that fits; annotate: ' +
      'only say so.',
  ),
  tier_downgrade: choice(['retry_without_beta', 'annotate'], 'retry_without_beta').describe(
    'What happens if long context is not part of the plan. retry_without_beta: ask once more without the ' +
      'anthropic-beta of long context, if the request fits without; annotate: only say so.',
  ),
  effective_ttl: key(duration, '1h').describe('How long a session uses a smaller context after such an error.'),
  quirks: key(z.array(quirk).max(MAX_QUIRKS), [], [EXAMPLE]).describe(
    'Errors of providers that Governor does not know, or misunderstands. Your rows come before those of Governor, ' +
      'and the first row that matches says what an error means. All that a row gives must match. At most 1,000.',
  ),
})
