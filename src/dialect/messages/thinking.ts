/**
 * Reasoning that is bound to the prompt it was made for, in Messages. Source:
 * platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
 */
import { type Edit, setMember } from '../../json/edit.ts'
import { decode, kindAt, member, members, root } from '../../json/scan.ts'
import type { BoundThinking, ThinkingRemoval } from '../dialect.ts'
import { BETA_HEADER } from '../shared/beta.ts'
import { isObject, parseObject, textOf } from '../shared/json-object.ts'

/** The setting needs this beta. */
const HEADER = { name: BETA_HEADER, value: 'thinking-binding-controls-2026-08-01' }
const DROP = JSON.stringify({ prefix_mismatch_behavior: 'drop_block' })

function isRefusal(error: Buffer): boolean {
  const told = parseObject(error.toString('utf8'))?.['error']
  return isObject(told) && textOf(told['message']).includes('bound to a different conversation')
}

function removalOf(edit: Edit): ThinkingRemoval {
  return { edits: [edit], header: HEADER }
}

/** A client that sets this itself, or turns thinking off, knows what it does. */
function dropBoundThinking(json: Buffer): ThinkingRemoval | undefined {
  const object = root(json)
  const fields = members(json, object)
  const thinking = member(fields, 'thinking')?.value
  if (!thinking || (kindAt(json, thinking) === 'scalar' && decode(json, thinking) === null)) {
    return removalOf(setMember(object, fields, 'thinking', `{"type":"adaptive","block_binding":${DROP}}`))
  }
  const value = decode(json, thinking)
  if (!isObject(value) || value['type'] === 'disabled' || isObject(value['block_binding'])) return undefined
  return removalOf(setMember(thinking, members(json, thinking), 'block_binding', DROP))
}

export const messagesBoundThinking: BoundThinking = {
  isBoundThinkingError: isRefusal,
  dropBoundThinking: dropBoundThinking,
}
