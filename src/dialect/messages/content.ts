/** The content of a message: a text, or a list of blocks, which are decoded on demand. */

import type { Work } from '../../core/bounds/work.ts'
import type { ResultSize, ToolCall, ToolResult } from '../../core/conversation/conversation.ts'
import { isObject, type Json, objectsOf, textOf } from '../../core/json-object.ts'
import { decodeStringToCompare, decodeToCompare } from '../../json/compare.ts'
import {
  decode,
  elementsBy,
  isString,
  kindAt,
  MemberWalk,
  member,
  members,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  type Span,
  skipValue,
} from '../../json/scan.ts'
import {
  attachmentHashes,
  callAt,
  isForProgram,
  type Message,
  resultText,
  stringAt,
  stringIn,
} from '../shared/request.ts'

/** The byte offsets of a content block, and its type; the type is empty if the value is not an object. */
export interface Block extends Span {
  readonly type: string
}

export interface Content {
  readonly json: Buffer
  readonly work: Work | undefined
  /** `undefined` if the message has no content. */
  readonly value: Span | undefined
  /** Empty if the content is a text. */
  readonly blocks: readonly Block[]
}

/** The types of frequent blocks, so that no string is made for each block. */
const TYPES = ['text', 'tool_use', 'tool_result', 'thinking', 'image']

function typeAt(json: Buffer, start: number, end: number): string {
  if (json[start] !== QUOTE) return ''
  for (const type of TYPES) if (isString(json, start, end, type)) return type
  return stringAt(json, start)
}

/** Steps to read which type a block has. */
const STEPS_PER_BLOCK = 2

function blockAt(json: Buffer, at: number, work: Work | undefined): Block {
  work?.spend(STEPS_PER_BLOCK)
  if (json[at] !== OPEN_BRACE) return { type: '', start: at, end: skipValue(json, at) }
  let type = ''
  const field = new MemberWalk(json, at, work)
  while (field.next()) if (field.is('type')) type = typeAt(json, field.value, field.skip())
  return { type, start: at, end: field.end }
}

/** Indexes the content that starts at `start`. @throws {JsonScanError} */
export function contentAt(json: Buffer, start: number, work?: Work): Content {
  if (json[start] !== OPEN_BRACKET) return { json, work, value: { start, end: skipValue(json, start) }, blocks: [] }
  const { elements: blocks, end } = elementsBy(json, start, (at) => blockAt(json, at, work))
  return { json, work, value: { start, end }, blocks }
}

function blockOf({ json, work }: Content, block: Block): Json {
  const value = decodeToCompare(json, block, work)
  return isObject(value) ? value : {}
}

export function countOf({ blocks }: Content, type: string): number {
  let count = 0
  for (const block of blocks) if (block.type === type) count++
  return count
}

/** Decodes the texts for the model and the calls for the client; yields where others should have their turn. */
export function* textsAndCallsOf(content: Content): Generator<void, Message> {
  const { json, work, value, blocks } = content
  const texts: string[] = []
  const calls: ToolCall[] = []
  if (value && kindAt(json, value) === 'string') texts.push(decodeStringToCompare(json, value, work))
  for (const block of blocks) {
    if (work?.isDue) yield
    if (block.type === 'text') texts.push(textOf(blockOf(content, block)['text']))
    else if (block.type === 'tool_use') calls.push(callAt(json, block, 'input', '', work))
  }
  return { texts, calls }
}

/** True if the block is a call that the provider makes itself (`server_tool_use`, `mcp_tool_use`). */
export function isRunByProvider({ type }: Block): boolean {
  return type.endsWith('_tool_use')
}

/** True if only results may follow: a program of the provider made a call, or its own call is open. */
export function takesResultsOnly({ json, blocks, work }: Content): boolean {
  const open = new Set<string>()
  for (const block of blocks) {
    if (block.type === '') continue
    const fields = members(json, block, work)
    const caller = member(fields, 'caller')?.value
    if (block.type === 'tool_use' && caller && isForProgram(decode(json, caller))) return true
    if (isRunByProvider(block)) open.add(stringIn(json, fields, 'id'))
    else if (block.type.endsWith('_tool_result')) open.delete(stringIn(json, fields, 'tool_use_id'))
  }
  return open.size > 0
}

export function idsRunByProvider({ json, blocks, work }: Content): string[] {
  return blocks.filter(isRunByProvider).map((block) => stringIn(json, members(json, block, work), 'id'))
}

export function resultsOf(content: Content): ToolResult[] {
  const results = content.blocks.filter(({ type }) => type === 'tool_result').map((block) => blockOf(content, block))
  return results.map(({ tool_use_id: id, content: result }) => ({ callId: textOf(id), text: resultText(result) }))
}

export function sizesOf({ json, blocks }: Content): ResultSize[] {
  const results = blocks.filter(({ type }) => type === 'tool_result')
  return results.map((block) => ({
    callId: stringIn(json, members(json, block), 'tool_use_id'),
    bytes: block.end - block.start,
  }))
}

export function picturesOf(content: Content): string[] {
  const attachments = content.blocks.filter(({ type }) => type === 'image' || type === 'document')
  return attachmentHashes(attachments.map((block) => blockOf(content, block)))
}

/** The line before Claude Code's system text: its version, and a number that may change with each request. */
const BILLING = 'x-anthropic-billing-header:'

/** True if the system text begins with such a line: its provider removes it only from an unchanged text. */
export function beginsWithBilling(system: unknown): boolean {
  const first = typeof system === 'string' ? system : textOf(objectsOf(system)[0]?.['text'])
  return first.startsWith(BILLING)
}

export function systemTextOf(system: unknown): string {
  if (typeof system === 'string') return system
  const texts = objectsOf(system).map(({ text }) => textOf(text))
  return texts.filter((text) => !text.startsWith(BILLING)).join('\n')
}
