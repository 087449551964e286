/** Whether a model's last words are an answer. */
import { parseForeign } from './foreign-json.ts'

/**
 * What models wrap their private reasoning in, and the ways they write a tool call as plain text when they
 * were not given the means to make one. Opening and closing marks; without a closing mark it reaches to the end.
 */
const NOT_AN_ANSWER: readonly (readonly [open: string, close: string])[] = [
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
]

const LONGEST_MARK = Math.max(...NOT_AN_ANSWER.map(([open]) => open.length))

/** Takes one leading piece of reasoning or tool-call markup off; `undefined` when the text starts with neither. */
function withoutLeadingMarkup(text: string): string | undefined {
  const start = text.slice(0, LONGEST_MARK)
  for (const [open, close] of NOT_AN_ANSWER) {
    if (!start.startsWith(open)) continue
    const end = text.indexOf(close, open.length)
    return end === -1 ? '' : text.slice(end + close.length)
  }
  return undefined
}

/** How a call begins that a model writes as plain JSON, or a list of such; in a code block or not. */
const JSON_CALL = /^(?:```(?:json)?\s*)?(?:\[\s*)?\{\s*"(?:name|type|function)"\s*:/
/** What may still turn out to begin so. */
const JSON_CALL_SO_FAR = /^(?:```(?:j|js|jso|json)?\s*)?(?:\[\s*)?(?:\{\s*(?:"[a-z]{0,8}(?:"\s*)?)?)?$/
/** Longer ones are taken for answers. */
const MAX_JSON_CALL = 65_536

type Json = Readonly<Record<string, unknown>>

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Is it a tool's name and its arguments, and nothing else? */
function isCall(value: unknown): boolean {
  if (!isObject(value)) return false
  const { name, arguments: args, parameters, type, function: made, id: _id, ...others } = value
  if (Object.keys(others).length > 0) return false
  if (made !== undefined) return (type ?? 'function') === 'function' && name === undefined && isCall(made)
  const given = args ?? parameters
  const hasArguments = isObject(given) || (typeof given === 'string' && given.trimStart().startsWith('{'))
  return typeof name === 'string' && (type ?? 'function') === 'function' && hasArguments
}

/** The beginning of a call in JSON, as far as it can be told from another object. */
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
 * True only for real text: not empty, not only reasoning, not a tool call written out. `isJson`: the client asked for an
 * object, so that one which looks like a call is none. Linear: every step takes something off the front.
 */
export function isRealAnswer(text: string, isJson = false): boolean {
  let rest = text.trim()
  // Some templates open the reasoning block themselves, so that only its end is in the reply.
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
 * Could `text`, the beginning of a reply, still turn out to be no answer? Then a stream must wait before showing it.
 * Of text that ends in a `</think>` without a beginning it can't be known, and the beginning was shown.
 */
export function mayStillBeMarkup(text: string, isJson = false): boolean {
  let rest = text.trimStart()
  for (;;) {
    if (rest === '') return true
    if (
      rest.length < LONGEST_MARK &&
      NOT_AN_ANSWER.some(([open]) => rest.length < open.length && open.startsWith(rest))
    ) {
      return true
    }
    const next = withoutLeadingMarkup(rest)
    if (next === undefined) return !isJson && (JSON_CALL_SO_FAR.test(rest) || isCallSoFar(rest))
    rest = next.trimStart()
  }
}
