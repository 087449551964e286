/** Tells whether a model's last text is an answer, rather than reasoning or a tool call written as text. */
import { FOOTER_START } from './footer.ts'
import { parseForeign } from './foreign-json.ts'

/**
 * Opening and closing marks around a model's reasoning, around a tool call that a model writes as plain text because it is
 * offered no tools, and around other text that is no answer. Without a closing mark the markup reaches to the end.
 */
const MARKUP: readonly (readonly [open: string, close: string])[] = [
  ['<think>', '</think>'],
  ['<thinking>', '</thinking>'],
  ['<reasoning>', '</reasoning>'],
  ['<thought>', '</thought>'],
  ['<seed:think>', '</seed:think>'],
  ['◁think▷', '◁/think▷'],
  ['<|channel|>analysis<|message|>', '<|end|>'],
  ['<|start|>assistant<|channel|>analysis<|message|>', '<|end|>'],
  ['<|channel|>commentary to=', '<|call|>'],
  ['<|start|>assistant<|channel|>commentary to=', '<|call|>'],
  ['<tool_call>', '</tool_call>'],
  ['<tool_calls>', '</tool_calls>'],
  ['<function_call>', '</function_call>'],
  ['<function_calls>', '</function_calls>'],
  ['<function=', '</function>'],
  ['<tool_use>', '</tool_use>'],
  ['<tool_code>', '</tool_code>'],
  ['```tool_code', '```'],
  ['<minimax:tool_call>', '</minimax:tool_call>'],
  ['<seed:tool_call>', '</seed:tool_call>'],
  ['<longcat_tool_call>', '</longcat_tool_call>'],
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

/** Returns the text without one leading piece of markup; `undefined` if it starts with none. */
function withoutLeadingMarkup(text: string): string | undefined {
  const start = text.slice(0, LONGEST_MARK)
  for (const [open, close] of MARKUP) {
    if (!start.startsWith(open)) continue
    const end = text.indexOf(close, open.length)
    return end === -1 ? '' : text.slice(end + close.length)
  }
  return undefined
}

/** How a call, or a list of calls, begins that a model writes as plain JSON, in a code block or not. */
const JSON_CALL = /^(?:```(?:json)?\s*)?(?:\[\s*)?\{\s*"(?:name|type|function)"\s*:/
/** Text that may still become such a beginning. */
const JSON_CALL_SO_FAR = /^(?:```(?:j|js|jso|json)?\s*)?(?:\[\s*)?(?:\{\s*(?:"[a-z]{0,8}(?:"\s*)?)?)?$/
/** Characters; longer texts count as answers. */
const MAX_JSON_CALL = 65_536

type Json = Readonly<Record<string, unknown>>

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

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

/** True if the text begins as a call in JSON does. */
function isCallSoFar(text: string): boolean {
  return text.length <= MAX_JSON_CALL && JSON_CALL.test(text)
}

function isJsonCall(text: string): boolean {
  if (!isCallSoFar(text)) return false
  try {
    const value: unknown = parseForeign(text.replace(/^```(?:json)?|```$/g, ''))
    return Array.isArray(value) ? value.every(isCall) : isCall(value)
  } catch {
    return false
  }
}

/**
 * True if the text is a real answer: not empty, not only reasoning, not a tool call written as text. `isJson`: the client
 * asked for an object, so that an object is an answer even if it looks like a call. Takes linear time.
 */
export function isRealAnswer(text: string, isJson = false): boolean {
  let rest = text.trim()
  // Some chat templates open the reasoning block, so that the reply has only its end.
  const orphanClose = rest.indexOf('</think>')
  if (orphanClose !== -1 && !rest.includes('<think>'))
    rest = rest.slice(orphanClose + '</think>'.length).trim()
  for (;;) {
    if (rest === '') return false
    const next = withoutLeadingMarkup(rest)
    if (next === undefined) return isJson || !isJsonCall(rest)
    rest = next.trim()
  }
}

/**
 * True if `text`, the beginning of a reply, may still turn out to be no answer; then a stream must hold it. Text before a
 * `</think>` without a beginning is not recognised, so it is shown.
 */
export function mayStillBeMarkup(text: string, isJson = false): boolean {
  let rest = text.trimStart()
  for (;;) {
    if (rest === '') return true
    if (
      rest.length < LONGEST_MARK &&
      MARKUP.some(([open]) => rest.length < open.length && open.startsWith(rest))
    ) {
      return true
    }
    const next = withoutLeadingMarkup(rest)
    if (next === undefined) return !isJson && (JSON_CALL_SO_FAR.test(rest) || isCallSoFar(rest))
    rest = next.trimStart()
  }
}
