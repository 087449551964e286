/**
 * Reads what responses state of their usage and their price, and puts the usage of several objects or responses
 * together.
 */
import { isObject, type Json, propertyOf, textOf } from '../../core/json-object.ts'
import { decode, member, members, rootStart } from '../../json/scan.ts'
import type { ResponseTail } from '../dialect.ts'
import { firstText, lastText, objectsUnder } from './response-tail.ts'

/** No response uses more tokens than this: a larger number is not a count. */
const MAX_TOKENS = 1e10

const isCount = (value: unknown): value is number => typeof value === 'number' && value >= 0 && value <= MAX_TOKENS

/** Returns the largest number of tokens among the values; `undefined` if none of them is a count. */
export function tokens(...values: readonly unknown[]): number | undefined {
  const counts = values.filter(isCount)
  return counts.length === 0 ? undefined : Math.round(Math.max(...counts))
}

/** The deepest details of a usage object that are put together. */
const MAX_DEPTH = 4

type Combine = (one: number, other: number) => number

const add: Combine = (a, b) => a + b

/** True for the steps of an answer: those of two answers are not the same ones, as the kinds of their tokens are. */
const areSteps = (list: readonly unknown[]) => list.some((one) => propertyOf(one, 'type') !== undefined)

/** Combines two usage objects number by number, details and lists included; steps follow each other in a sum. */
function combined(one: unknown, other: unknown, combine: Combine, depth = MAX_DEPTH): unknown {
  if (typeof one === 'number' && typeof other === 'number') return combine(one, other)
  const isList = Array.isArray(one) && Array.isArray(other)
  if (depth === 0 || !(isList || (isObject(one) && isObject(other))))
    return typeof one === 'number' ? one : (other ?? one)
  if (isList && combine === add && areSteps(one)) return [...one, ...other]
  const [a, b] = [one, other] as [Json, Json]
  const keys = new Set([...Object.keys(a), ...Object.keys(b)])
  const pairs = [...keys].map((key) => [key, combined(a[key], b[key], combine, depth - 1)] as const)
  return isList ? pairs.map(([, value]) => value) : Object.fromEntries(pairs)
}

export function addUsage(one: unknown, other: unknown): unknown {
  return combined(one, other, add)
}

/**
 * Returns the usage of a response that states it twice: in some, later zeros stand for numbers that were stated before.
 */
export function largerUsage(one: unknown, other: unknown): unknown {
  return combined(one, other, (a, b) => (isCount(a) && isCount(b) ? Math.max(a, b) : isCount(a) ? a : b))
}

/** So many ticks of xAI's bill are a dollar (https://docs.x.ai/developers/cost-tracking). */
const TICKS = 1e10

/** Returns the dollars that a usage object states: as a number, as parts with their sum (Perplexity), or in ticks. */
function feeIn(usage: unknown): unknown {
  const fee = propertyOf(usage, 'cost')
  const ticks = propertyOf(usage, 'cost_in_usd_ticks')
  return propertyOf(fee, 'total_cost') ?? fee ?? (typeof ticks === 'number' ? ticks / TICKS : undefined)
}

/** Returns the members of a whole response; its content, which may hold members of the same names, is not read. */
function topOf({ whole, streams }: ResponseTail): Json | undefined {
  if (!whole || streams) return undefined
  try {
    const fields = members(whole, { start: rootStart(whole), end: whole.length })
    const top: Json = {}
    for (const key of ['usage', 'tool_usage', 'model', 'service_tier', 'id']) {
      const value = member(fields, key)?.value
      if (value) top[key] = decode(whole, value)
    }
    return top
  } catch {
    // It is incomplete or not JSON.
    return undefined
  }
}

/**
 * Returns what a response states: all its usage objects as one, if it has any; its price; its id, else an empty text.
 */
export function statedIn(response: ResponseTail) {
  const { head, tail, whole } = response
  const top = topOf(response)
  let usage = top?.['usage']
  if (!isObject(usage))
    for (const piece of whole ? [whole] : [head, tail])
      usage = objectsUnder(piece, 'usage').reduce<unknown>(largerUsage, usage)
  const ofTools = top ? top['tool_usage'] : objectsUnder(tail, 'tool_usage').at(-1)
  const text = (name: string, of: unknown = usage) => textOf(propertyOf(of, name)) || undefined
  const fee = feeIn(usage)
  const ofModel = propertyOf(propertyOf(usage, 'cost_details'), 'upstream_inference_cost')
  // With a key of its own, the client pays the model's provider too
  // (https://openrouter.ai/docs/guides/overview/auth/byok).
  const paid = propertyOf(usage, 'is_byok') === true && isCount(ofModel) ? ofModel : 0
  return {
    usage: isObject(usage) ? usage : undefined,
    bill: {
      cost: isCount(fee) ? fee + paid : undefined,
      model: top ? text('model', top) : firstText(head, 'model'),
      tier: text('service_tier') ?? (top ? text('service_tier', top) : lastText(tail, 'service_tier')),
      speed: text('speed'),
      region: text('inference_geo'),
      searches: tokens(
        propertyOf(propertyOf(usage, 'server_tool_use'), 'web_search_requests'),
        propertyOf(propertyOf(ofTools, 'web_search'), 'num_requests'),
      ),
    },
    id: (top ? text('id', top) : firstText(head, 'id')) ?? '',
  }
}
