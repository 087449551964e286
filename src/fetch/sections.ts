import type * as z from 'zod'
import type { configSchema } from '../config/schema.ts'

/** The sections of `governor.yaml` that mean something without a server. The build writes the types of each. */
export const SECTIONS = [
  'agents',
  'budget',
  'loop_guard',
  'mode',
  'models',
  'overflow',
  'overrides',
  'sessions',
  'stop',
  'storm',
] as const satisfies readonly (keyof z.input<typeof configSchema>)[]
