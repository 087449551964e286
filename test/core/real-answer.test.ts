import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { beginReply, isRealAnswer, mayStillBeMarkup } from '../../src/core/conversation/real-answer.ts'

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

/** Calls as open models write them into their text, each whole; no two families agree on brackets, bars or ends. */
const FORMATS: Readonly<Record<string, string>> = {
  hermes: '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.ts"}}\n</tool_call>',
  qwenCoder: '<tool_call>\n<function=read_file>\n<parameter=path>\na.ts\n</parameter>\n</function>\n</tool_call>',
  qwenCoderOrphan: '<function=read_file>\n<parameter=path>\na.ts\n</parameter>\n</function>\n</tool_call>',
  qwenAgent: '✿FUNCTION✿: read_file\n✿ARGS✿: {"path": "a.ts"}',
  glm: '<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a.ts</arg_value>\n</tool_call>',
  kimi: '<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>{"path": "a.ts"}<|tool_call_end|><|tool_calls_section_end|>',
  deepseekV3:
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_file\n```json\n{"path": "a.ts"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
  deepseekV32:
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="read_file">\n<｜DSML｜parameter name="path" string="true">a.ts</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
  deepseekV4:
    '<｜｜DSML｜｜tool_calls>\n<｜｜DSML｜｜invoke name="read_file">\n<｜｜DSML｜｜parameter name="path">a.ts</｜｜DSML｜｜parameter>\n</｜｜DSML｜｜invoke>\n</｜｜DSML｜｜tool_calls>',
  deepseekAscii: '<|DSML|tool_calls>\n<|DSML|invoke name="read_file">\n</|DSML|invoke>\n</|DSML|tool_calls>',
  dsmlOrphans: '</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
  minimax:
    '<minimax:tool_call>\n<invoke name="read_file">\n<parameter name="path">a.ts</parameter>\n</invoke>\n</minimax:tool_call>',
  seed: '<seed:tool_call>\n<function=read_file>\n<parameter=path>a.ts</parameter>\n</function>\n</seed:tool_call>',
  step: '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="read_file"><steptml:parameter name="path">a.ts</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
  longcat:
    '<longcat_tool_call>read_file\n<longcat_arg_key>path</longcat_arg_key>\n<longcat_arg_value>a.ts</longcat_arg_value>\n</longcat_tool_call>',
  xai: '<xai:function_call name="read_file">\n<parameter name="path">a.ts</parameter>\n</xai:function_call>',
  claude:
    '<function_calls>\n<invoke name="read_file">\n<parameter name="path">a.ts</parameter>\n</invoke>\n</function_calls>',
  selfClosing: '<tool_call name="read_file" path="a.ts"/>',
  llamaTag: '<|python_tag|>{"name": "read_file", "parameters": {"path": "a.ts"}}<|eom_id|>',
  llamaBuiltIn: '<|python_tag|>brave_search.call(query="it")',
  llamaJson: '{"name": "read_file", "parameters": {"path": "a.ts"}}',
  llamaTwo: '{"name": "read_file", "parameters": {"path": "a"}}; {"name": "read_file", "parameters": {"path": "b"}}',
  llamaCustom: '<function=read_file>{"path": "a.ts"}</function>',
  pythonic: '[read_file(path="a.ts"), list_files()]',
  mistral: '[TOOL_CALLS] [{"name": "read_file", "arguments": {"path": "a.ts"}}]',
  mistralNew: '[TOOL_CALLS]read_file[ARGS]{"path": "a.ts",\n"deep": {\n"a": 1\n}\n}',
  magistral: '[TOOL_CALLS]read_file[CALL_ID]abc123def[ARGS]{"path": "a.ts"}</s>',
  nemotron: '<TOOLCALL>[{"name": "read_file", "arguments": {"path": "a.ts"}}]</TOOLCALL>',
  granite: '<|tool_call|>[{"name": "read_file", "arguments": {"path": "a.ts"}}]',
  graniteOld: '<function_call> {"name": "read_file", "arguments": {"path": "a.ts"}}',
  internlm: '<|action_start|><|plugin|>\n{"name": "read_file", "parameters": {"path": "a.ts"}}<|action_end|>',
  cohere:
    '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "read_file", "parameters": {"path": "a.ts"}}]<|END_ACTION|>',
  cohereJson: '```json\n[\n  {\n    "tool_name": "read_file",\n    "parameters": {"path": "a.ts"}\n  }\n]\n```',
  phi: 'functools[{"name": "read_file", "arguments": {"path": "a.ts"}}]',
  lfm: '<|tool_call_start|>[read_file(path="a.ts")]<|tool_call_end|>',
  gemmaCode: '```tool_code\nprint(read_file(path="a.ts"))\n```',
  functionGemma: '<start_function_call>call:read_file{path:<escape>a.ts<escape>}<end_function_call>',
  gemma4: '<|tool_call>call:read_file{path:<|"|>a.ts<|"|>}<tool_call|>',
  apertus: '<|tools_prefix|>[{"read_file": {"path": "a.ts"}}]<|tools_suffix|>',
  functionary: '<|recipient|>read_file\n<|content|>{"path": "a.ts"}<|stop|>',
  gptOss: '<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{"path": "a.ts"}<|call|>',
  gptOssRole: '<|start|>assistant to=functions.read_file<|channel|>commentary json<|message|>{"path": "a.ts"}<|call|>',
  gptOssThinks:
    '<|channel|>analysis<|message|>I have to read it.<|end|><|start|>assistant<|channel|>commentary to=functions.read_file code<|message|>{"path": "a.ts"}',
  templateOpens: '{"name": "read_file", "arguments": {"path": "a.ts"}}\n</tool_call>',
  toolResponse: '<tool_response>\n{"content": "It is 42."}\n</tool_response>',
  lmStudio: '[TOOL_REQUEST]{"name": "read_file", "arguments": {"path": "a.ts"}}[END_TOOL_REQUEST]',
  toolKey: '{"tool": "read_file", "args": {"path": "a.ts"}}',
  react: '{"action": "read_file", "action_input": {"path": "a.ts"}}',
  openAi:
    '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "read_file", "arguments": "{\\"path\\": 1}"}}]}',
  anthropic: '{"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a.ts"}}',
  // Names that no model uses yet, as the next one will have its own.
  nextTags:
    '<acme:tool_invocation id="1">\n<acme:tool_name>read_file</acme:tool_name>{"path": "a.ts"}\n</acme:tool_invocation>',
  nextBars: '<｜acme▁function▁calls▁open｜>read_file｜a.ts<｜acme▁function▁calls▁close｜>',
}

const anyText = fc
  .array(
    fc.oneof(
      fc.constantFrom(
        ...MARKUP,
        ...Object.values(FORMATS),
        '<tool_call',
        '</tool_call>',
        '<|im_start|>assistant',
        '<|message|>',
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

  it('is an object that was cut off, unless all its keys are those of a call', () => {
    expect(isRealAnswer('{"name": "search", "temperature": 4, "hum')).toBe(true)
    expect(isRealAnswer('{"name": "search", "arguments": {of the tool}}')).toBe(true)
    expect(isRealAnswer('{"name": "search", "arguments": {"temperature": 4, "hum')).toBe(false)
  })

  it.each(MARKUP)('is found after %j, and before it', (markup) => {
    expect(isRealAnswer(`${markup}\n\nIt is 42.`)).toBe(true)
    expect(isRealAnswer(`It is 42.\n${markup.replace('</think>', '')}`)).toBe(true)
  })

  it.each(Object.entries(FORMATS))('is missing in the call of %s, whole, cut off anywhere, or twice', (_, call) => {
    // Some begin like a word.
    for (let end = (/^\w*/.exec(call)?.[0].length ?? 0) + 1; end <= call.length; end++)
      expect([call.slice(0, end), isRealAnswer(call.slice(0, end))]).toEqual([call.slice(0, end), false])
    for (const text of [`\n${call}\n`, `${call}\n${call}`, `<think>Hm.</think>\n\n${call}`])
      expect(isRealAnswer(text)).toBe(false)
  })

  it.each(Object.entries(FORMATS))('that quotes the call of %s, whole or cut off, is one', (_, call) => {
    for (const end of [call.length, Math.ceil(call.length / 2), 12]) {
      const part = call.slice(0, end)
      for (const text of [
        `\`${part}\` is what the parser has to read.`,
        // JSON in a code block is how some models write their calls.
        `\`\`\`${/^[<[]\W?\w/.test(call) && !call.startsWith('[read') ? '' : 'text'}\n${part}\n\`\`\``,
        `\`\`\`xml\n${part}\n\`\`\`\nThis is how the call looks.`,
        `The parser must read ${part} in line 5; I fixed it.`,
        `"${part}" is what I saw.`,
        `- ${part}`,
        `> ${part}`,
      ])
        expect([text, isRealAnswer(text)]).toEqual([text, true])
    }
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
    ['<answer>42</answer>', true],
    ['<svg><use href="#tool"/></svg>', true],
    ['<!DOCTYPE html><p>It is 42.</p>', true],
    ['[Tool calls](https://example.org) are explained there.', true],
    ['[tools]\nport = 1', true],
    ['```toml\n[tools]\n```', true],
    ['Functional programming', true],
    ['functional programming', true],
    ['f', true],
    ['<3 this', true],
    ['<|im_start|>assistant\nIt is 42.<|im_end|>', true],
    ['<|begin_of_box|>42<|end_of_box|>', true],
    ['<|channel|>commentary<|message|>I will look.<|end|>', true],
    ['<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>', true],
    ['<|channel|>final<|message|><|return|>', false],
    ['<function=read_file></function></tool_call>\nIt is 42.', true],
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
    ['[TOOL_REQUEST]{"name": "a"}[END_TOOL_REQUEST] It shows that 2 > 1.', true],
    ['[TOOL_REQUEST]{"name": "a"}[END_TOOL_REQUEST]✿FUNCTION✿: read\n✿ARGS✿: {"path": "a.ts"}', false],
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
      {
        numRuns: 500,
        examples: [
          ['[TOOL_REQUEST]{"name": "a"}[END_TOOL_REQUEST]✿FUNCTION✿: read_file\n✿ARGS✿: {"path": "a.ts"}', [14]],
        ],
      },
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

  it.each(['H', 'Hello', '<b>', '<thinkers>', '[1', '<3 ', '<|im_start|>b', ' <think>a</think> b'])(
    'is certainly an answer at %j',
    (text) => {
      expect(mayBe(text)).toBe(false)
    },
  )
})

describe('a reply that comes in pieces', () => {
  it.each(['<think>', '◁think▷', '[TOOL_REQUEST]', '```tool_code\n'])(
    'is not kept while a mark hides it: %s',
    (mark) => {
      const start = beginReply(false)
      for (const piece of [mark, ...Array.from({ length: 50 }, () => 'So we look at this. ')]) {
        expect(mayStillBeMarkup(start, piece)).toBe(true)
        expect(start.rest.length).toBeLessThanOrEqual(500)
      }
    },
  )
})
