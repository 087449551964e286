/** The content of a message: a text, or a list of blocks, which are decoded on demand. */
import type { ToolCall, ToolResult } from '../../core/conversation.ts'
import { isObject, type Json, objectsOf, textOf } from '../../core/json-object.ts'
import type { Work } from '../../core/work.ts'
import { decodeStringToCompare, decodeToCompare } from '../../json/compare.ts'
import {
  decode,
  decodeStringIn,
  firstElement,
  firstKey,
  isKey,
  isPlainly,
  kindAt,
  member,
  members,
  nextElement,
  nextKey,
  type Span,
  skipString,
  skipValue,
  valueAfter,
} from '../../json/scan.ts'
import { attachmentHashes, resultText, stringAt } from '../shared/request-list.ts'

const QUOTE = 0x22
const OPEN_BRACE = 0x7b
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

/** The byte offsets of a content block, and its type; the type is empty if the value is not an object. */
export interface Block extends Span {
  readonly type: string
}

/** The byte offsets of a message's content. */
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
  for (const type of TYPES) if (isPlainly(json, start, end, type)) return type
  return stringAt(json, start)
}

/** Steps to read which type a block has. */
const STEPS_PER_BLOCK = 2

function blockAt(json: Buffer, at: number, work: Work | undefined): Block {
  work?.spend(STEPS_PER_BLOCK)
  if (json[at] !== OPEN_BRACE) return { type: '', start: at, end: skipValue(json, at) }
  let type = ''
  let key = firstKey(json, at)
  while (json[key] === QUOTE) {
    work?.spend(1)
    const keyEnd = skipString(json, key)
    const value = valueAfter(json, keyEnd)
    const end = skipValue(json, value)
    if (isKey(json, key, keyEnd, 'type')) type = typeAt(json, value, end)
    key = nextKey(json, end)
  }
  return { type, start: at, end: key + 1 }
}

/** Indexes the content that starts at `start`. @throws {JsonScanError} */
export function contentAt(json: Buffer, start: number, work?: Work): Content {
  if (json[start] !== OPEN_BRACKET) return { json, work, value: { start, end: skipValue(json, start) }, blocks: [] }
  const blocks: Block[] = []
  let at = firstElement(json, start)
  while (json[at] !== CLOSE_BRACKET) {
    const block = blockAt(json, at, work)
    blocks.push(block)
    at = nextElement(json, block.end)
  }
  return { json, work, value: { start, end: at + 1 }, blocks }
}

function blockOf({ json, work }: Content, block: Block): Json {
  const value = work ? decodeToCompare(json, block, work) : decode(json, block)
  return isObject(value) ? value : {}
}

/** Returns the number of blocks of a type. */
export function countOf({ blocks }: Content, type: string): number {
  let count = 0
  for (const block of blocks) if (block.type === type) count++
  return count
}

function textOfBlock(content: Content, block: Block): string {
  return textOf(blockOf(content, block)['text'])
}

/** Returns the texts of a content, without reasoning, calls, results and documents. */
export function textsOf(content: Content): string[] {
  const { json, value, blocks, work } = content
  if (value && kindAt(json, value) === 'string')
    return [work ? decodeStringToCompare(json, value, work) : decodeStringIn(json, value)]
  return blocks.filter(({ type }) => type === 'text').map((block) => textOfBlock(content, block))
}

function callOf({ json, work }: Content, block: Block): ToolCall {
  const fields = members(json, block, work)
  const text = (name: string): string => {
    const value = member(fields, name)?.value
    return stringAt(json, value?.start)
  }
  // The JSON text itself: decoding would lose digits.
  const input = member(fields, 'input')?.value
  if (input) work?.decode(input.end - input.start)
  const args = input ? json.toString('utf8', input.start, input.end) : ''
  return { id: text('id'), name: text('name'), arguments: args }
}

/** Returns the calls that the client has to make, not those that the provider makes itself (`server_tool_use`, MCP). */
export function callsOf(content: Content): ToolCall[] {
  return content.blocks.filter(({ type }) => type === 'tool_use').map((block) => callOf(content, block))
}

/** The texts and the calls of a message. */
export interface TextsAndCalls {
  readonly texts: readonly string[]
  readonly calls: readonly ToolCall[]
}

/** Returns `textsOf` and `callsOf`, and yields wherever other requests should have their turn. */
export function* textsAndCallsOf(content: Content): Generator<void, TextsAndCalls> {
  if (content.blocks.length === 0) return { texts: textsOf(content), calls: [] }
  const texts: string[] = []
  const calls: ToolCall[] = []
  for (const block of content.blocks) {
    if (content.work?.isDue) yield
    if (block.type === 'text') texts.push(textOfBlock(content, block))
    else if (block.type === 'tool_use') calls.push(callOf(content, block))
  }
  return { texts, calls }
}

/** True if the block is a call that the provider makes itself (`server_tool_use`, `mcp_tool_use`). */
export function isRunByProvider({ type }: Block): boolean {
  return type.endsWith('_tool_use')
}

/** Returns the ids of the calls that the provider made itself. */
export function idsRunByProvider({ json, blocks, work }: Content): string[] {
  return blocks
    .filter(isRunByProvider)
    .map((block) => stringAt(json, member(members(json, block, work), 'id')?.value.start))
}

/** Returns the tool results in a content. */
export function resultsOf(content: Content): ToolResult[] {
  return content.blocks
    .filter(({ type }) => type === 'tool_result')
    .map((block) => {
      const result = blockOf(content, block)
      return { callId: textOf(result['tool_use_id']), text: resultText(result['content']) }
    })
}

/** Returns hashes of the pictures and documents in a content. */
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

/** Returns the system text of a request, from a text or from blocks. */
export function systemTextOf(system: unknown): string {
  if (typeof system === 'string') return system
  return objectsOf(system)
    .map((block) => textOf(block['text']))
    .filter((text) => !text.startsWith(BILLING))
    .join('\n')
}
