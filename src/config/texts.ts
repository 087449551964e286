/** Texts that a model is told. */
import * as z from 'zod'
import { PLACEHOLDERS, unknownPlaceholders } from '../core/budget/notice.ts'

/** A template; what it may not hold is said at start. */
export const template = z
  .string()
  .min(1)
  .refine((text) => unknownPlaceholders(text).length === 0, {
    error: ({ input }) => {
      const unknown = unknownPlaceholders(String(input)).map((name) => `{${name}}`)
      return `unknown placeholder ${unknown.join(', ')}: expected ${PLACEHOLDERS.map((name) => `{${name}}`).join(', ')}`
    },
  })
