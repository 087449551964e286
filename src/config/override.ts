/** Overrides of sections of the configuration: every key is optional, and no key has a default. */
import * as z from 'zod'
import { isObject } from '../core/json-object.ts'

type Shape = Readonly<Record<string, z.ZodType>>

/** The schema of a value in an override. */
type Overridden<T> =
  T extends z.ZodDefault<infer Inner>
    ? Overridden<Inner>
    : T extends z.ZodPrefault<infer Inner>
      ? Overridden<Inner>
      : T extends z.ZodObject<infer S extends Shape>
        ? z.ZodObject<OverrideShape<S>, z.core.$strict>
        : T

/** The shape of a section in an override. */
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

/** Returns the shape with every key optional and without default, inside too. Unknown keys stay errors. */
export function overrideShape<S extends Shape>(shape: S): OverrideShape<S> {
  const entries = Object.entries(shape).map(([key, schema]) => [key, overridden(schema).optional()])
  return Object.fromEntries(entries) as OverrideShape<S>
}

/** Returns a section with the values of an override; objects are merged key by key, lists are replaced. */
export function withOverride<T extends object>(section: T, override: object): T {
  const entries = Object.entries(override).filter(([, value]) => value !== undefined)
  const merged = entries.map(([key, value]) => {
    const before: unknown = Object.hasOwn(section, key) ? Reflect.get(section, key) : undefined
    return [key, isObject(before) && isObject(value) ? withOverride(before, value) : value]
  })
  return { ...section, ...Object.fromEntries(merged) }
}
