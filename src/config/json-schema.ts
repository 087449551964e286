import * as z from 'zod'
import { configSchema } from './schema.ts'

/** The JSON Schema of a configuration file, for editors: what `config/schema.json` holds. */
export function jsonSchema(): object {
  return z.toJSONSchema(configSchema, { io: 'input', target: 'draft-7' })
}
