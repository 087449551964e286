/** Overrides of sections of the configuration: every key is optional, and no key has a default. */
import * as z from 'zod'
import { isObject, type Json } from '../core/json-object.ts'

type Shape = Readonly<Record<string, z.ZodType>>

/** Returns a schema without its default, and with its description. */
function overridden(schema: z.ZodType): z.ZodType {
  if (schema instanceof z.ZodDefault || schema instanceof z.ZodPrefault)
    return overridden(schema.unwrap() as z.ZodType).meta(schema.meta() ?? {})
  return schema instanceof z.ZodObject ? z.strictObject(overrideShape(schema.shape as Shape)) : schema
}

/** Returns the shape with every key optional and without default, inside too. Unknown keys stay errors. */
export function overrideShape(shape: Shape): Record<string, z.ZodOptional> {
  const overrides: Record<string, z.ZodOptional> = {}
  for (const [key, schema] of Object.entries(shape)) overrides[key] = overridden(schema).optional()
  return overrides
}

/** Returns a section with the values of an override; objects are merged key by key, lists are replaced. */
export function withOverride<T extends object>(section: T, override: object): T {
  const merged = { ...section } as Json
  for (const [key, value] of Object.entries(override)) {
    const before = merged[key]
    if (value !== undefined) merged[key] = isObject(before) && isObject(value) ? withOverride(before, value) : value
  }
  return merged as T
}
