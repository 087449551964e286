/** Whether a model's last words are an answer. */

/**
 * What models wrap their private reasoning in, and the ways they write a tool call as plain text when they
 * were not given the means to make one. Opening and closing marks; without a closing mark it reaches to the end.
 */
const NOT_AN_ANSWER: readonly (readonly [open: string, close: string])[] = [
  ['<think>', '</think>'],
  ['<thinking>', '</thinking>'],
  ['<reasoning>', '</reasoning>'],
  ['<tool_call>', '</tool_call>'],
  ['<tool_calls>', '</tool_calls>'],
  ['<function_call>', '</function_call>'],
  ['<function_calls>', '</function_calls>'],
  ['<function=', '</function>'],
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

/**
 * True only for real text: not empty, not only reasoning, not a tool call written out.
 * Linear: every step takes something off the front.
 */
export function isRealAnswer(text: string): boolean {
  let rest = text.trim()
  // Some templates open the reasoning block themselves, so that only its end is in the reply.
  const orphanClose = rest.indexOf('</think>')
  if (orphanClose !== -1 && !rest.includes('<think>'))
    rest = rest.slice(orphanClose + '</think>'.length).trim()
  for (;;) {
    if (rest === '') return false
    const next = withoutLeadingMarkup(rest)
    if (next === undefined) return true
    rest = next.trim()
  }
}

/**
 * Could `text`, the beginning of a reply, still turn out to be no answer? Then a stream must wait before showing it.
 * Of text that ends in a `</think>` without a beginning it can't be known, and the beginning was shown.
 */
export function mayStillBeMarkup(text: string): boolean {
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
    if (next === undefined) return false
    rest = next.trimStart()
  }
}
