/**
 * Reasoning that is bound to the prompt that it was made for. Source:
 * platform.claude.com/docs/en/build-with-claude/preserved-thinking/prefix-checks
 */
import { isObject, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { type Edit, setMember } from '../../json/edit.ts'
import { decode, kindAt, member, members, root } from '../../json/scan.ts'
import type { BoundThinking, ThinkingRemoval } from '../dialect.ts'
import { BETA_HEADER } from '../shared/dialect-members.ts'

/** The setting below needs this beta. */
const HEADER = { name: BETA_HEADER, value: 'thinking-binding-controls-2026-08-01' }
const DROP = JSON.stringify({ prefix_mismatch_behavior: 'drop_block' })

function removalOf(edit: Edit): ThinkingRemoval {
  return { edits: [edit], header: HEADER }
}

/** Changes nothing for a client that sets `block_binding` itself, or turns thinking off. */
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

/** How the Messages API reports bound reasoning, and how a request asks it to drop such reasoning. */
export const messagesBoundThinking: BoundThinking = {
  isBoundThinkingError(body) {
    const error = parseObject(body.toString('utf8'))?.['error']
    return textOf(propertyOf(error, 'message')).includes('bound to a different conversation')
  },
  dropBoundThinking,
}
