/** Tells whether a model's last text is an answer, rather than reasoning or a tool call written as text. */

import { isObject, parseForeign } from './json-object.ts'
import { FOOTER_START } from './terminal.ts'

/** Elements around a model's reasoning, and around a tool call that it writes as text because it is offered no tools. */
const ELEMENTS =
  'think thinking reasoning thought seed:think tool_call tool_calls function_call function_calls tool_use tool_code ' +
  'minimax:tool_call seed:tool_call longcat_tool_call'

/** Opening and closing marks around text that is no answer. Without a closing mark the markup reaches to the end. */
const MARKUP: readonly (readonly [open: string, close: string])[] = [
  ...ELEMENTS.split(' ').map((name) => [`<${name}>`, `</${name}>`] as const),
  ['◁think▷', '◁/think▷'],
  ['<|channel|>analysis<|message|>', '<|end|>'],
  ['<|start|>assistant<|channel|>analysis<|message|>', '<|end|>'],
  ['<|channel|>commentary to=', '<|call|>'],
  ['<|start|>assistant<|channel|>commentary to=', '<|call|>'],
  ['<function=', '</function>'],
  ['```tool_code', '```'],
  ['<start_function_call>', '<end_function_call>'],
  ['<|tool_call_start|>', '<|tool_call_end|>'],
  ['<invoke ', '</invoke>'],
  ['<|tool_call|>', '<|/tool_call|>'],
  ['<|tool_call_begin|>', '<|tool_call_end|>'],
  ['<|tool_calls_section_begin|>', '<|tool_calls_section_end|>'],
  ['<|python_tag|>', '<|eom_id|>'],
  ['<｜tool▁calls▁begin｜>', '<｜tool▁calls▁end｜>'],
  ['<｜DSML｜function_calls>', '</｜DSML｜function_calls>'],
  ['[TOOL_CALLS]', '\n'],
  ['[TOOL_REQUEST]', '[END_TOOL_REQUEST]'],
  // A model may repeat the footer that it finds in its history.
  [FOOTER_START, '\n'],
]

const LONGEST_MARK = Math.max(...MARKUP.map(([open]) => open.length))

/** How a call, or a list of calls, begins that a model writes as plain JSON, in a code block or not, and what may become it. */
const JSON_CALL = /^(?:```(?:json)?\s*)?(?:\[\s*)?\{\s*"(?:name|type|function)"\s*:/
const JSON_CALL_SO_FAR = /^(?:```(?:j|js|jso|json)?\s*)?(?:\[\s*)?(?:\{\s*(?:"[a-z]{0,8}(?:"\s*)?)?)?$/
/** Characters; longer texts count as answers. */
const MAX_JSON_CALL = 65_536

/** True for an object with a tool's name and arguments and nothing else. */
function isCall(value: unknown): boolean {
  if (!isObject(value)) return false
  const { name, arguments: args, parameters, type, function: inner, id: _id, ...others } = value
  if (Object.keys(others).length > 0) return false
  if (inner !== undefined) return (type ?? 'function') === 'function' && name === undefined && isCall(inner)
  const input = args ?? parameters
  const hasArguments = isObject(input) || (typeof input === 'string' && input.trimStart().startsWith('{'))
  return typeof name === 'string' && (type ?? 'function') === 'function' && hasArguments
}

function isJsonCall(text: string): boolean {
  if (text.length > MAX_JSON_CALL || !JSON_CALL.test(text)) return false
  try {
    const value: unknown = parseForeign(text.replace(/^```(?:json)?|```$/g, ''))
    return Array.isArray(value) ? value.every(isCall) : isCall(value)
  } catch {
    return false
  }
}

/** The beginning of a reply that comes in pieces. `isJson`: the client asked for an object, so that one is an answer. */
export interface ReplyStart {
  readonly isJson: boolean
  /** Text that is not decided yet. It stays short, so that no character is read again with each piece. */
  rest: string
  /** The mark that ends the markup in which the reply is. */
  close: string | undefined
  /** Characters of what may be a call in JSON; 0 if the reply has not begun as one. */
  callLength: number
}

/** Returns the state of a reply before its first piece. */
export function beginReply(isJson: boolean): ReplyStart {
  return { isJson, rest: '', close: undefined, callLength: 0 }
}

/** Removes markup and white space before what is `rest`. Returns true if that has begun and is no markup. */
function skipMarkup(start: ReplyStart): boolean {
  for (;;) {
    const { rest, close } = start
    if (close !== undefined) {
      const end = rest.indexOf(close)
      // The closing mark may have begun.
      start.rest = rest.slice(end === -1 ? Math.max(0, rest.length - close.length + 1) : end + close.length)
      if (end === -1) return false
    }
    start.close = undefined
    start.rest = start.rest.trimStart()
    const head = start.rest.slice(0, LONGEST_MARK)
    const mark = MARKUP.find(([open]) => head.startsWith(open))
    if (!mark) return head !== '' && !MARKUP.some(([open]) => open.startsWith(head))
    start.rest = start.rest.slice(mark[0].length)
    start.close = mark[1]
  }
}

/**
 * True if the text is a real answer: not empty, not only reasoning, not a tool call written as text. `isJson`: the
 * client asked for an object, so that an object is an answer even if it looks like a call. Takes linear time.
 */
export function isRealAnswer(text: string, isJson = false): boolean {
  const reply = beginReply(isJson)
  // Some chat templates open the reasoning block, so that the reply has only its end.
  const orphanClose = text.indexOf('</think>')
  reply.rest = orphanClose === -1 || text.includes('<think>') ? text : text.slice(orphanClose + '</think>'.length)
  skipMarkup(reply)
  // What may only become markup in a stream is text where the reply ends.
  return reply.close === undefined && reply.rest !== '' && (isJson || !isJsonCall(reply.rest.trimEnd()))
}

/** Returns true if a reply that is no markup so far may still be a call written as JSON. */
function mayStillBeCall(start: ReplyStart, piece: string): boolean {
  if (start.isJson) return false
  if (start.callLength === 0) {
    const { rest } = start
    // As long as it is white space that comes, one character of it is enough.
    start.rest = rest.replace(/\s+/g, ' ')
    if (!JSON_CALL.test(start.rest)) return JSON_CALL_SO_FAR.test(start.rest)
    start.callLength = rest.length
    start.rest = ''
  } else {
    start.callLength += piece.length
  }
  return start.callLength <= MAX_JSON_CALL
}

/**
 * Takes the next piece of a reply. Returns true if the reply may still turn out to be no answer; then a stream must
 * hold it. Takes no piece after it returned false. Text before a `</think>` without a beginning is shown.
 */
export function mayStillBeMarkup(start: ReplyStart, piece: string): boolean {
  if (start.callLength === 0) {
    start.rest += piece
    if (!skipMarkup(start)) return true
  }
  return mayStillBeCall(start, piece)
}
