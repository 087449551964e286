/** What Messages requests hold in a message: one text, or a list of blocks. Read by their bytes, decoded when asked for. */
import type { ToolCall, ToolResult } from '../../core/conversation.ts'
import { STEPS_PER_VALUE, type Work } from '../../core/work.ts'
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
import { attachmentHashes, resultText } from '../shared/content-parts.ts'
import { isObject, type Json, objectsOf, textOf } from '../shared/json-object.ts'
import { stringAt } from '../shared/request-list.ts'

const QUOTE = 0x22
const OPEN_BRACE = 0x7b
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d

/** A content block by its bytes; the type of what is no block is empty. */
export interface Block extends Span {
  readonly type: string
}

/** The content of a message, as far as it was looked at. */
export interface Content {
  readonly json: Buffer
  readonly work: Work | undefined
  /** Unset where the message has none. */
  readonly value: Span | undefined
  /** Empty where the content is a text. */
  readonly blocks: readonly Block[]
}

/** The types of blocks that are frequent; a string each, made once. */
const TYPES = ['text', 'tool_use', 'tool_result', 'thinking', 'image']

function typeAt(json: Buffer, start: number, end: number): string {
  if (json[start] !== QUOTE) return ''
  for (const type of TYPES) if (isPlainly(json, start, end, type)) return type
  return stringAt(json, start)
}

function blockAt(json: Buffer, at: number, work: Work | undefined): Block {
  work?.spend(STEPS_PER_VALUE)
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

/** Reads the content that starts at `start`. @throws {JsonScanError} */
export function contentAt(json: Buffer, start: number, work?: Work): Content {
  if (json[start] !== OPEN_BRACKET)
    return { json, work, value: { start, end: skipValue(json, start) }, blocks: [] }
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

/** How many blocks of a type there are. */
export function countOf({ blocks }: Content, type: string): number {
  let count = 0
  for (const block of blocks) if (block.type === type) count++
  return count
}

/** The texts of a content, without reasoning, calls, results and documents. */
export function textsOf(content: Content): string[] {
  const { json, value, blocks, work } = content
  if (value && kindAt(json, value) === 'string')
    return [work ? decodeStringToCompare(json, value, work) : decodeStringIn(json, value)]
  return blocks.filter(({ type }) => type === 'text').map((block) => textOf(blockOf(content, block)['text']))
}

/** The calls that the client is to make; what the provider runs itself (`server_tool_use`, MCP) is none. */
export function callsOf(content: Content): ToolCall[] {
  const { json, blocks, work } = content
  return blocks
    .filter(({ type }) => type === 'tool_use')
    .map((block) => {
      const fields = members(json, block, work)
      const text = (name: string): string => {
        const value = member(fields, name)?.value
        return stringAt(json, value?.start)
      }
      // As it was written: decoding would lose digits.
      const input = member(fields, 'input')?.value
      if (input) work?.decode(input.end - input.start)
      const args = input ? json.toString('utf8', input.start, input.end) : ''
      return { id: text('id'), name: text('name'), arguments: args }
    })
}

/** Is it the call of a tool that the provider runs itself (`server_tool_use`, `mcp_tool_use`)? */
export function isRunByProvider({ type }: Block): boolean {
  return type.endsWith('_tool_use')
}

/** The ids of such calls. */
export function idsRunByProvider({ json, blocks, work }: Content): string[] {
  return blocks
    .filter(isRunByProvider)
    .map((block) => stringAt(json, member(members(json, block, work), 'id')?.value.start))
}

/** What tools answered. */
export function resultsOf(content: Content): ToolResult[] {
  return content.blocks
    .filter(({ type }) => type === 'tool_result')
    .map((block) => {
      const result = blockOf(content, block)
      return { callId: textOf(result['tool_use_id']), text: resultText(result['content']) }
    })
}

/** What stands for the pictures and documents beside texts and results. */
export function picturesOf(content: Content): string[] {
  const shown = content.blocks.filter(({ type }) => type === 'image' || type === 'document')
  return attachmentHashes(shown.map((block) => blockOf(content, block)))
}

/**
 * What Claude Code puts before its system text: its version, and a number that can be another in each request. It says
 * nothing to the model.
 */
const BILLING = 'x-anthropic-billing-header:'

/** A system text, given as one text or as blocks. */
export function systemTextOf(system: unknown): string {
  if (typeof system === 'string') return system
  return objectsOf(system)
    .map((block) => textOf(block['text']))
    .filter((text) => !text.startsWith(BILLING))
    .join('\n')
}
