import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { beginReply, isRealAnswer, mayStillBeMarkup } from '../../src/core/real-answer.ts'

/** True if a reply of which `text` came in these pieces may still be no answer. */
const mayBe = (text: string, pieces: readonly string[] = [text]) => {
  const start = beginReply(false)
  return pieces.every((piece) => mayStillBeMarkup(start, piece))
}

const MARKUP: readonly string[] = [
  '<think>Let me see.</think>',
  '<thinking>\nhm\n</thinking>',
  '<reasoning>hm</reasoning>',
  '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>',
  '<tool_calls>[]</tool_calls>',
  '<function_call>{}</function_call>',
  '<function_calls><invoke name="a"></invoke></function_calls>',
  '<function=search>{"q": 1}</function>',
  '<invoke name="search"></invoke>',
  '<|tool_call|>{}<|/tool_call|>',
  '<|tool_call_begin|>functions.search:0<|tool_call_end|>',
  '<|tool_calls_section_begin|><|tool_call_begin|>x<|tool_call_end|><|tool_calls_section_end|>',
  '<|python_tag|>search.call(q="a")<|eom_id|>',
  '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search<｜tool▁calls▁end｜>',
  '<｜DSML｜function_calls><｜DSML｜invoke name="a"></｜DSML｜invoke></｜DSML｜function_calls>',
  '[TOOL_REQUEST]{"name": "a"}[END_TOOL_REQUEST]',
  '<thought>hm</thought>',
  '<seed:think>hm</seed:think>',
  '◁think▷hm◁/think▷',
  '<|channel|>analysis<|message|>hm<|end|>',
  '<|start|>assistant<|channel|>analysis<|message|>hm<|end|>',
  '<|channel|>commentary to=functions.search<|message|>{}<|call|>',
  '<|start|>assistant<|channel|>commentary to=functions.search<|message|>{}<|call|>',
  '<tool_use><name>search</name></tool_use>',
  '<tool_code>search()</tool_code>',
  '```tool_code\nsearch()\n```',
  '<minimax:tool_call><invoke name="a"></invoke></minimax:tool_call>',
  '<seed:tool_call><function=search></function></seed:tool_call>',
  '<longcat_tool_call>search</longcat_tool_call>',
  '<start_function_call>call:search{}<end_function_call>',
  '<|tool_call_start|>[search()]<|tool_call_end|>',
]

const anyText = fc
  .array(
    fc.oneof(
      fc.constantFrom(
        ...MARKUP,
        '[TOOL_CALLS] [{}]\n',
        '<think>',
        '</think>',
        '<tool_call>',
        '{"name": "a", "arguments": {}}',
        '{"name"',
        '```json',
        '[{',
        '<',
        '[TOOL',
        ' ',
        '\n',
      ),
      fc.constantFrom('Yes.', 'a', '<b>', '<|', '[1]', 'x < y'),
    ),
    { maxLength: 6 },
  )
  .map((pieces) => pieces.join(''))

describe('a final answer', () => {
  it.each(['', ' \n\t', ...MARKUP, '<think>never closed', '<tool_call>{"name": "se', '[TOOL_CALLS] [{"name": "a"}]'])(
    'is missing in %j',
    (text) => {
      expect(isRealAnswer(text)).toBe(false)
    },
  )

  it.each(MARKUP)('is found after %j, and before it', (markup) => {
    expect(isRealAnswer(`${markup}\n\nIt is 42.`)).toBe(true)
    expect(isRealAnswer(`It is 42.\n${markup.replace('</think>', '')}`)).toBe(true)
  })

  it('is missing in any sequence of reasoning and tool calls', () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...MARKUP, ' ', '\n')), (pieces) => {
        expect(isRealAnswer(pieces.join(''))).toBe(false)
        expect(isRealAnswer(`${pieces.join('')}Done.`)).toBe(true)
      }),
      { numRuns: 200 },
    )
  })

  it.each([
    ['The tag <think> opens a block that </think> closes.', true],
    ['Use `<tool_call>` for that.', true],
    ['0', true],
    ['<b>Bold</b> words', true],
    ['<thinker>Rodin</thinker>', true],
    ['{"name": "search", "parameters": {"q": "a"}}', false],
    ['<think>hm</think>\n```json\n{"name": "search", "arguments": {}}\n```', false],
    ['[{"type": "function", "function": {"name": "a", "arguments": {}}}]', false],
    ['{"function": {"name": "search", "arguments": "{\\"q\\": 1}"}}', false],
    ['{"name": "Ada", "arguments": "For and against."}', true],
    ['{"name": "Ada", "born": 1815}', true],
    ['{"name": "search", "arguments": {}} is what I would call.', true],
    ['{"answer": 42}', true],
    ['[1, 2]', true],
    ['<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 42.', true],
    ['Reasoning whose beginning the template wrote.</think>\n\nIt is 42.', true],
    ['Reasoning whose beginning the template wrote.</think>\n', false],
    ['Reasoning.</think><tool_call>{}</tool_call>', false],
  ])('in %j: %s', (text, isAnswer) => {
    expect(isRealAnswer(text)).toBe(isAnswer)
  })

  it('is found in one pass, however often markup is repeated', () => {
    const many = '<think>a</think>'.repeat(50_000)
    expect(isRealAnswer(many)).toBe(false)
    expect(isRealAnswer(`${many}b`)).toBe(true)
  })
})

describe('the beginning of a reply that streams in', () => {
  it('is recognized as an answer only if the whole reply is one, except for reasoning that its template began', () => {
    fc.assert(
      fc.property(anyText, fc.nat(), (text, at) => {
        const prefix = text.slice(0, at % (text.length + 1))
        const hasOrphan = text.includes('</think>') && !text.includes('<think>')
        expect(mayBe(prefix) || isRealAnswer(text) || hasOrphan).toBe(true)
      }),
      { numRuns: 300 },
    )
  })

  it('stays recognized as an answer as it grows', () => {
    fc.assert(
      fc.property(anyText, fc.nat(), (text, at) => {
        const prefix = text.slice(0, at % (text.length + 1))
        expect(mayBe(prefix) || !mayBe(text)).toBe(true)
      }),
      { numRuns: 300 },
    )
  })

  it('is judged alike in whatever pieces it comes', () => {
    fc.assert(
      fc.property(anyText, fc.array(fc.nat({ max: 60 }), { maxLength: 5 }), (text, cuts) => {
        const ends = [...cuts.sort((one, other) => one - other), text.length]
        const pieces = ends.map((end, at) => text.slice(ends[at - 1] ?? 0, end))
        expect(mayBe(text, pieces)).toBe(mayBe(text))
        expect(mayBe(text, [...text])).toBe(mayBe(text))
      }),
      { numRuns: 500 },
    )
  })

  it('may still be markup at every cut of markup', () => {
    for (const markup of MARKUP) {
      for (let end = 0; end <= markup.length; end++) expect(mayBe(markup.slice(0, end))).toBe(true)
    }
  })

  it('may still be a tool call in JSON until it turns out to be another object', () => {
    expect(['{', '[ {', '{"na', '{"name": "Ad', '```js', '```json\n{"typ'].map((text) => mayBe(text))).toEqual(
      Array(6).fill(true),
    )
    expect(['{"answer":', '[1', '```py', '{"names": 1', '[]'].map((text) => mayBe(text))).toEqual(Array(5).fill(false))
  })

  it('is checked in linear time, however much white space it contains', () => {
    const text = `\`\`\`json${' '.repeat(2_000_000)}`
    expect(mayBe(text)).toBe(true)
    expect(mayBe(`${text}x`)).toBe(false)
    expect(isRealAnswer(`${text}x`)).toBe(true)
  })

  it.each(['H', 'Hello', '<b', '<thinkers', '[1', '<|end', ' <think>a</think> b', '</think>'])(
    'is certainly an answer at %j',
    (text) => {
      expect(mayBe(text)).toBe(false)
    },
  )
})
