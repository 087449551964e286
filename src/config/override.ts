/** Sections of the configuration as an override may give them: every key optional, and none with a default. */
import * as z from 'zod'

type Shape = Readonly<Record<string, z.ZodType>>

/** A value of a section as an override may give it. */
type Overridden<T> =
  T extends z.ZodDefault<infer Inner>
    ? Overridden<Inner>
    : T extends z.ZodPrefault<infer Inner>
      ? Overridden<Inner>
      : T extends z.ZodObject<infer S extends Shape>
        ? z.ZodObject<OverrideShape<S>, z.core.$strict>
        : T

export type OverrideShape<S> = {
  [K in keyof S]: z.ZodOptional<Overridden<S[K]> extends z.ZodType ? Overridden<S[K]> : z.ZodType>
}

function overridden(schema: z.ZodType): z.ZodType {
  if (schema instanceof z.ZodDefault || schema instanceof z.ZodPrefault) {
    const inner = overridden(schema.unwrap() as z.ZodType)
    const meta = schema.meta()
    return meta === undefined ? inner : inner.meta(meta)
  }
  return schema instanceof z.ZodObject ? z.strictObject(overrideShape(schema.shape as Shape)) : schema
}

/** The same keys, each optional and without its default, in nested objects too. Unknown keys stay refused. */
export function overrideShape<S extends Shape>(shape: S): OverrideShape<S> {
  const entries = Object.entries(shape).map(([key, schema]) => [key, overridden(schema).optional()])
  return Object.fromEntries(entries) as OverrideShape<S>
}

/** Does a value have keys of its own, so that it is merged and not replaced? */
function hasKeys(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** A section with what an override gives in place of its own values; objects are merged key by key, lists are replaced. */
export function withOverride<T extends object>(section: T, override: object): T {
  const given = Object.entries(override).filter(([, value]) => value !== undefined)
  const merged = given.map(([key, value]) => {
    const before: unknown = Object.hasOwn(section, key) ? Reflect.get(section, key) : undefined
    return [key, hasKeys(before) && hasKeys(value) ? withOverride(before, value) : value]
  })
  return { ...section, ...Object.fromEntries(merged) }
}
