/** The texts that Governor sends to models. */
import * as z from 'zod'
import { PLACEHOLDERS, unknownPlaceholders } from '../core/budget/notice.ts'

/** The schema of a template; an unknown placeholder is an error. */
export const template = z
  .string()
  .min(1)
  .refine((text) => unknownPlaceholders(text).length === 0, {
    error: ({ input }) => {
      const unknown = unknownPlaceholders(String(input)).map((name) => `{${name}}`)
      return `unknown placeholder ${unknown.join(', ')}: expected ${PLACEHOLDERS.map((name) => `{${name}}`).join(', ')}`
    },
  })
