/** Members of `Dialect` that are the same for all APIs whose request bodies have the fields `model` and `stream`. */
import { applyEdits, type Edit, setMember } from '../../json/edit.ts'
import { decode, kindAt, member, members, root, type Span } from '../../json/scan.ts'
import type { AskedOutput, Dialect } from '../dialect.ts'
import { SETTINGS, stringIn } from './request.ts'
import { writtenCharacters } from './response-tail.ts'
import { CallFilter, type DialectState, type Part, RewrittenStream, type StreamDialect } from './stream-engine.ts'

export function dialectMembers<P extends Part, S extends DialectState>(stream: StreamDialect<P, S>) {
  return {
    modelOf: ({ body }) => stringIn(body, members(body, root(body)), 'model') || undefined,
    withLowerOutput,
    withoutLongContext,
    writtenCharacters,
    openStream: (dropCalls, isJson, mayHaveFooter) =>
      new RewrittenStream(stream, dropCalls ? 'answer' : 'observe', isJson, mayHaveFooter),
    openFilter: (isJson) => new CallFilter(stream, isJson),
    openText() {
      const state = stream.start('observe')
      return (frame) => stream.parse(frame, state, false).text
    },
  } as const satisfies Partial<Dialect>
}

/** The fields that cap the output of a request; gateways accept each of them in any dialect. */
const CAPS = ['max_completion_tokens', 'max_output_tokens', 'max_tokens', 'max_new_tokens', 'maxOutputTokens']

/** The objects with a cap of the tokens for thinking, and its key. */
const THINKING = [
  ['thinking', 'budget_tokens'],
  ['thinkingConfig', 'thinkingBudget'],
  ['thinking_config', 'thinking_budget'],
] as const

function numberAt(json: Buffer, place: Span | undefined): number | undefined {
  const value = place && decode(json, place)
  return typeof value === 'number' && Number.isSafeInteger(value) && value > 0 ? value : undefined
}

function withLowerOutput(json: Buffer, lower: (asked: AskedOutput) => AskedOutput | undefined): Buffer | undefined {
  const fields = members(json, root(json))
  for (const key of SETTINGS) {
    const settings = member(fields, key)?.value
    if (settings && kindAt(json, settings) === 'object') fields.push(...members(json, settings))
  }
  const caps = CAPS.flatMap((key) => {
    const place = member(fields, key)?.value
    const value = numberAt(json, place)
    return place && value !== undefined ? { place, value } : []
  })
  if (caps.length === 0) return undefined
  const cap = Math.max(...caps.map(({ value }) => value))
  const [object, key] = THINKING.find(([name]) => member(fields, name)) ?? THINKING[0]
  const thinking = member(fields, object)?.value
  const budget = thinking && kindAt(json, thinking) === 'object' ? members(json, thinking) : []
  const tokens = numberAt(json, member(budget, key)?.value)
  const allowed = lower({ cap, ...(tokens === undefined ? {} : { thinking: tokens }) })
  if (!allowed) return undefined
  const edits: Edit[] = []
  for (const { place, value } of caps) if (value > allowed.cap) edits.push({ ...place, text: String(allowed.cap) })
  if (thinking && allowed.thinking !== undefined && allowed.thinking !== tokens)
    edits.push(setMember(thinking, budget, key, String(allowed.thinking)))
  return applyEdits(json, edits)
}

/** The header that turns on beta features of Anthropic's API; gateways pass it on in any dialect. */
export const BETA_HEADER = 'anthropic-beta'

const LONG_CONTEXT = /^context-\d+[km]-/i

/** Returns raw headers without the betas of a longer context; `undefined` if there are none. */
function withoutLongContext(headers: readonly string[]): string[] | undefined {
  let isFound = false
  const kept: string[] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name = '', value = ''] = [headers[at], headers[at + 1]]
    if (name.toLowerCase() !== BETA_HEADER) {
      kept.push(name, value)
      continue
    }
    const betas = value.split(',').map((beta) => beta.trim())
    const others = betas.filter((beta) => !LONG_CONTEXT.test(beta))
    isFound ||= others.length < betas.length
    if (others.length > 0) kept.push(name, others.join(','))
  }
  return isFound ? kept : undefined
}
