/** Chat request bodies of every shape that clients send, as JSON texts with numbers that JSON.parse would change. */
import fc from 'fast-check'

const text = fc.constantFrom('', 'Hello', 'ä "quoted"\n\\ and 😀', '{"a":1}')
const asJson = (value: unknown) => JSON.stringify(value)

const textPart = text.map((value) => asJson({ type: 'text', text: value }))
const cachedPart = text.map((value) => `{"type":"text","text":${asJson(value)},"cache_control":{"type":"ephemeral"}}`)
const imagePart = fc.constant('{"type":"image_url","image_url":{"url":"data:,"},"size":1.0}')

export const contentText = fc.oneof(
  text.map(asJson),
  fc.constant('null'),
  fc.array(fc.oneof(textPart, cachedPart, imagePart), { maxLength: 3 }).map((parts) => `[ ${parts.join(' , ')} ]`),
)

const role = fc.constantFrom('system', 'developer', 'user', 'assistant', 'tool', 'function', 'critic')

export const messageText = fc.oneof(
  fc.tuple(role, contentText).map(([name, content]) => `{"role": "${name}","content":${content}, "n":1.0}`),
  fc.tuple(role, contentText).map(([name, content]) => `{"content": ${content},"role":"${name}"}`),
  role.map((name) => `{ "role":"${name}" }`),
  fc.constant(
    '{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"id\\":9007199254740993}"}}]}',
  ),
  fc.constant('{"role":"tool","tool_call_id":"c","content":"result"}'),
)

export const field = fc.constantFrom(
  '"model":"gpt-4o"',
  '"seed": 9007199254740993',
  '"temperature":1.0',
  '"tools":[{"type":"function","function":{"name":"f"}}]',
  '"tool_choice":"auto"',
  '"parallel_tool_calls":true',
  '"functions":[{"name":"f"}]',
  '"function_call":{"name":"f"}',
  '"stream":true',
)

/** A body with its messages and other fields in any order; `messages` is not empty. */
export const bodyText = fc
  .tuple(
    fc.uniqueArray(field, { maxLength: 6 }),
    fc.array(messageText, { minLength: 1, maxLength: 5 }),
    fc.nat({ max: 6 }),
    fc.constantFrom('', ' ', '\n  '),
  )
  .map(([fields, messages, at, space]) => {
    const list = `"messages":${space}[${space}${messages.join(`,${space}`)}${space}]`
    return `{${space}${[...fields.slice(0, at), list, ...fields.slice(at)].join(`,${space}`)}${space}}`
  })
