/** Responses request bodies of every shape that clients send, as JSON texts with numbers that JSON.parse would change. */
import fc from 'fast-check'

const text = fc.constantFrom('', 'Hello', 'ä "quoted"\n\\ and 😀', '{"a":1}')
const asJson = (value: unknown) => JSON.stringify(value)

const part = fc.oneof(
  text.map((value) => asJson({ type: 'input_text', text: value })),
  text.map((value) => asJson({ type: 'output_text', text: value, annotations: [] })),
  fc.constant('{"type":"input_image","image_url":"data:,","size":1.0}'),
)

const parts = fc.array(part, { maxLength: 3 }).map((all) => `[ ${all.join(' , ')} ]`)
const content = fc.oneof(text.map(asJson), parts)

const role = fc.constantFrom('system', 'developer', 'user', 'assistant', 'critic')
const id = fc.constantFrom('a', 'b', 'c')

/** One item of the input. */
export const itemText = fc.oneof(
  fc.tuple(role, content).map(([name, text]) => `{"role": "${name}","content":${text}, "n":1.0}`),
  fc.tuple(role, content).map(([name, text]) => `{"content":${text},"role":"${name}","type":"message"}`),
  fc
    .tuple(id, text)
    .map(
      ([name, args]) =>
        `{"type":"function_call","id":"fc_${name}","call_id":"${name}","name":"f","arguments":${asJson(args)},"n":9007199254740993}`,
    ),
  fc
    .tuple(id, content)
    .map(([name, output]) => `{"call_id":"${name}","type":"function_call_output","output":${output}}`),
  id.map((name) => `{"type":"custom_tool_call","call_id":"${name}","name":"g","input":"free text"}`),
  fc
    .tuple(id, content)
    .map(([name, output]) => `{"type":"custom_tool_call_output","call_id":"${name}","output":${output}}`),
  id.map((name) => `{"type":"local_shell_call","call_id":"${name}","action":{"type":"exec","command":["ls"]}}`),
  id.map((name) => `{"type":"local_shell_call_output","id":"${name}","output":"{}"}`),
  fc.constant('{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"xyz"}'),
  fc.constant('{"type":"web_search_call","id":"ws_1","status":"completed"}'),
  fc.constantFrom('fc_1', 'msg_1', 'rs_1').map((name) => `{"type":"item_reference","id":"${name}"}`),
  fc.constant('{"type":"compaction","encrypted_content":"xyz"}'),
)

export const field = fc.constantFrom(
  '"model":"gpt-5"',
  '"seed": 9007199254740993',
  '"temperature":1.0',
  '"instructions":"You are an agent."',
  '"instructions":null',
  '"instructions":""',
  '"tools":[{"type":"function","name":"f"}]',
  '"tool_choice":"auto"',
  '"parallel_tool_calls":true',
  '"store":false',
  '"store":true',
  '"previous_response_id":"resp_1"',
  '"conversation":{"id":"conv_1"}',
  '"background":true',
  '"stream":true',
)

/** A body with its input, a list or a text, and other fields in any order. */
export const bodyText = fc
  .tuple(
    fc.uniqueArray(field, { maxLength: 6, selector: (member) => member.split(':')[0] }),
    fc.oneof(
      { weight: 5, arbitrary: fc.array(itemText, { minLength: 1, maxLength: 7 }) },
      { weight: 1, arbitrary: text.map(asJson) },
    ),
    fc.nat({ max: 6 }),
    fc.constantFrom('', ' ', '\n  '),
  )
  .map(([fields, input, at, space]) => {
    const value = typeof input === 'string' ? input : `[${space}${input.join(`,${space}`)}${space}]`
    const all = [...fields.slice(0, at), `"input":${space}${value}`, ...fields.slice(at)]
    return `{${space}${all.join(`,${space}`)}${space}}`
  })
