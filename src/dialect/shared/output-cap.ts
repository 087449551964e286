/** The fields that cap the output of a request; gateways accept each of them in any dialect. */
import { applyEdits, type Edit, setMember } from '../../json/edit.ts'
import { decode, kindAt, type Member, member, members, root } from '../../json/scan.ts'
import type { AskedOutput } from '../dialect.ts'

const CAPS = ['max_completion_tokens', 'max_output_tokens', 'max_tokens', 'max_new_tokens']

function numberAt(json: Buffer, field: Member | undefined): number | undefined {
  const value = field && decode(json, field.value)
  return typeof value === 'number' && Number.isSafeInteger(value) && value > 0 ? value : undefined
}

/**
 * Returns the body with the output cap that `lower` allows, in tokens; `undefined` if it has no cap or `lower` returns
 * `undefined`.
 * @throws {JsonScanError}
 */
export function withLowerOutput(
  json: Buffer,
  lower: (asked: AskedOutput) => AskedOutput | undefined,
): Buffer | undefined {
  const fields = members(json, root(json))
  const caps = CAPS.flatMap((key) => {
    const field = member(fields, key)
    const value = numberAt(json, field)
    return field && value !== undefined ? [{ field, value }] : []
  })
  const cap = Math.max(0, ...caps.map(({ value }) => value))
  if (cap === 0) return undefined
  const thinking = member(fields, 'thinking')
  const budget = thinking && kindAt(json, thinking.value) === 'object' ? members(json, thinking.value) : []
  const tokens = numberAt(json, member(budget, 'budget_tokens'))
  const allowed = lower({ cap, ...(tokens === undefined ? {} : { thinking: tokens }) })
  if (!allowed) return undefined
  const edits: Edit[] = caps
    .filter(({ value }) => value > allowed.cap)
    .map(({ field }) => ({ ...field.value, text: String(allowed.cap) }))
  if (thinking && allowed.thinking !== undefined && allowed.thinking !== tokens)
    edits.push(setMember(thinking.value, budget, 'budget_tokens', String(allowed.thinking)))
  return applyEdits(json, edits)
}
