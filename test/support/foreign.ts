/** Values that are cheap to write and expensive to read, and every place of a request that may contain one. */

/** JSON texts of about `size` bytes, by the kind of value that they repeat. */
export const SHAPES: Readonly<Record<string, (size: number) => string>> = {
  'brackets that nothing closes': (size) => '['.repeat(size),
  'lists in lists': (size) => '['.repeat(size / 2) + ']'.repeat(size / 2),
  'objects in objects': (size) => `${'{"a":'.repeat(size / 6)}1${'}'.repeat(size / 6)}`,
  'empty lists': (size) => `[${'[],'.repeat(size / 3)}[]]`,
  'empty objects': (size) => `[${'{},'.repeat(size / 3)}{}]`,
  numbers: (size) => `[${'0,'.repeat(size / 2)}0]`,
  keys: (size) => `{${Array.from({ length: Math.ceil(size / 10) }, (_, at) => `"k${at}":0`).join(',')}}`,
  'short texts': (size) => `[${'"ab",'.repeat(size / 5)}"ab"]`,
  'one text': (size) => `"${'a'.repeat(size)}"`,
  escapes: (size) => `"${'\\n'.repeat(size / 2)}"`,
  'escaped letters': (size) => `"${'\\u4e2d'.repeat(size / 6)}"`,
  backslashes: (size) => `"${'\\\\'.repeat(size / 2)}"`,
  parts: (size) => `[${'{"type":"text","text":"a"},'.repeat(size / 26)}{"type":"image","source":1}]`,
}

/** A JSON text as a string inside another JSON text. */
const asText = (value: string) => JSON.stringify(value)

const TOOL = '{"type":"function","name":"f","input_schema":{},"function":{"name":"f","parameters":{}}}'
const chat = (messages: string, more = '') => `{"model":"m",${more}"messages":[${messages}],"tools":[${TOOL}]}`
const responses = (input: string, more = '"store":false,') =>
  `{"model":"m",${more}"input":[${input}],"tools":[${TOOL}]}`
const ASK = '{"role":"user","content":"hi"}'
const chatCall = (id: string, name: string, args: string) =>
  `{"role":"assistant","content":null,"tool_calls":[{"id":${id},"type":"function","function":{"name":${name},"arguments":${args}}}]}`
const chatResult = (id: string, content: string) => `{"role":"tool","tool_call_id":${id},"content":${content}}`
const use = (input: string) =>
  `{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":${input}}]}`
const used = (content: string) =>
  `{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":${content}}]}`
const item = (type: string, more: string) => `{"type":"${type}","call_id":"c",${more}}`

/** Requests with a value in one of their places, by dialect and place. */
export const PLACES: Readonly<
  Record<'chat' | 'messages' | 'responses', Readonly<Record<string, (value: string) => string>>>
> = {
  chat: {
    'arguments as text': (v) => chat(`${ASK},${chatCall('"c"', '"f"', asText(v))},${chatResult('"c"', '"ok"')},${ASK}`),
    'arguments as JSON': (v) => chat(`${ASK},${chatCall('"c"', '"f"', v)},${chatResult('"c"', '"ok"')},${ASK}`),
    'an id': (v) => chat(`${ASK},${chatCall(v, '"f"', '"{}"')},${chatResult(v, '"ok"')},${ASK}`),
    'a name': (v) => chat(`${ASK},${chatCall('"c"', v, '"{}"')},${chatResult('"c"', '"ok"')},${ASK}`),
    'a result': (v) => chat(`${ASK},${chatCall('"c"', '"f"', '"{}"')},${chatResult('"c"', v)},${ASK}`),
    'a system text': (v) => chat(`{"role":"system","content":${v}},${ASK}`),
    'a question': (v) => chat(`{"role":"user","content":${v}},{"role":"assistant","content":"a"},${ASK}`),
    'an answer': (v) => chat(`${ASK},{"role":"assistant","content":${v}},${ASK}`),
    'a role': (v) => chat(`${ASK},{"role":${v},"content":"a"},${ASK}`),
    metadata: (v) => chat(ASK, `"metadata":${v},`),
    'a user id': (v) => chat(ASK, `"metadata":{"user_id":${asText(v)}},`),
    'the conversation': (v) => chat(ASK, `"conversation":${v},`),
    'a tool choice': (v) => chat(ASK, `"tool_choice":${v},`),
    'a forced tool': (v) => chat(ASK, `"tool_choice":{"type":"function","function":${v}},`),
    'a response format': (v) => chat(ASK, `"response_format":${v},`),
    'a schema': (v) => chat(ASK, `"response_format":{"type":"json_schema","json_schema":${v}},`),
    'a field that nobody knows': (v) => chat(ASK, `"x":${v},`),
    'a field of a message': (v) => chat(`{"role":"user","content":"a","x":${v}},${ASK}`),
    'the messages': (v) => `{"tools":[${TOOL}],"messages":${v}}`,
  },
  messages: {
    'an input': (v) => chat(`${ASK},${use(v)},${used('"ok"')},${ASK}`),
    'a result': (v) => chat(`${ASK},${use('{}')},${used(v)},${ASK}`),
    'a system text': (v) => chat(ASK, `"system":${v},`),
    'a question': (v) => chat(`{"role":"user","content":${v}},{"role":"assistant","content":"a"},${ASK}`),
    'a picture': (v) =>
      chat(`{"role":"user","content":[{"type":"image","source":${v}}]},{"role":"assistant","content":"a"},${ASK}`),
    'an answer': (v) => chat(`${ASK},{"role":"assistant","content":${v}},${ASK}`),
    'a user id': (v) => chat(ASK, `"metadata":{"user_id":${asText(v)}},`),
    'an output format': (v) => chat(ASK, `"output_config":{"format":${v}},`),
    'the thread': (v) => chat(ASK, `"thread":${v},`),
    'the messages': (v) => `{"tools":[${TOOL}],"messages":${v}}`,
  },
  responses: {
    arguments: (v) =>
      responses(
        `${ASK},${item('function_call', `"name":"f","arguments":${asText(v)}`)},${item('function_call_output', '"output":"ok"')},${ASK}`,
      ),
    'an action': (v) =>
      responses(
        `${ASK},${item('computer_call', `"action":${v}`)},${item('computer_call_output', '"output":"ok"')},${ASK}`,
      ),
    'an output': (v) =>
      responses(
        `${ASK},${item('function_call', '"name":"f","arguments":"{}"')},${item('function_call_output', `"output":${v}`)},${ASK}`,
      ),
    reasoning: (v) =>
      responses(
        `${ASK},{"type":"reasoning","summary":${v}},${item('function_call', '"name":"f","arguments":"{}"')},${ASK}`,
      ),
    instructions: (v) => responses(ASK, `"store":false,"instructions":${v},`),
    'a text format': (v) => responses(ASK, `"text":{"format":${v}},`),
    'the prompt': (v) => responses(ASK, `"prompt":${v},`),
    'the response before': (v) => responses(ASK, `"previous_response_id":${v},`),
    'a reference': (v) => responses(`${ASK},{"type":"item_reference","id":${v}},${ASK}`),
    'the input': (v) => `{"store":false,"tools":[${TOOL}],"input":${v}}`,
  },
}
