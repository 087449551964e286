/** Messages request bodies of every shape that clients send, as JSON texts with numbers that JSON.parse would change. */
import fc from 'fast-check'

const text = fc.constantFrom(
  '',
  'Hello',
  'ä "quoted"\n\\ and 😀',
  '{"type":"tool_use"}',
  '<system-reminder>x</system-reminder>',
)
const asJson = (value: unknown) => JSON.stringify(value)
const cache = fc.constantFrom(
  '',
  ',"cache_control":{"type":"ephemeral"}',
  ', "cache_control" : {"type":"ephemeral","ttl":"1h"}',
)

const textBlock = fc.tuple(text, cache).map(([value, mark]) => `{"type":"text","text":${asJson(value)}${mark}}`)
const image = fc.constant(
  '{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="},"size":1.0}',
)
const thinking = fc.constant('{"type":"thinking","thinking":"Hm \\"tool_use\\"","signature":"c2ln"}')
const redacted = fc.constant('{"type":"redacted_thinking","data":"AA"}')
const call = fc
  .tuple(fc.constantFrom('a', 'b', 'c'), cache)
  .map(
    ([id, mark]) => `{"type":"tool_use","id":"${id}","name":"search","input":{"id":9007199254740993, "q":1.0}${mark}}`,
  )
const serverCall = fc.constant('{"type":"server_tool_use","id":"srv","name":"web_search","input":{"query":"x"}}')
const serverResult = fc.constant('{"type":"web_search_tool_result","tool_use_id":"srv","content":[]}')
const resultContent = fc.oneof(
  text.map((value) => `,"content":${asJson(value)}`),
  fc.array(fc.oneof(textBlock, image), { maxLength: 2 }).map((blocks) => `,"content":[${blocks.join(',')}]`),
  fc.constant(''),
)
const result = fc
  .tuple(fc.constantFrom('a', 'b', 'c'), resultContent, cache, fc.constantFrom('', ',"is_error":true'))
  .map(([id, content, mark, error]) => `{"tool_use_id":"${id}","type":"tool_result"${content}${error}${mark}}`)
const odd = fc.constantFrom('{}', '{"type":7}', '"text"', 'null', '{"\\u0074ype":"text","text":"escaped"}')

const list = (blocks: fc.Arbitrary<string>) => fc.array(blocks, { maxLength: 4 }).map((all) => `[ ${all.join(' , ')} ]`)

const userContent = fc.oneof(text.map(asJson), list(fc.oneof(textBlock, image, result, odd)), fc.constant('null'))
const assistantContent = fc.oneof(
  text.map(asJson),
  list(fc.oneof(textBlock, thinking, redacted, call, serverCall, serverResult, odd)),
)

export const messageText = fc.oneof(
  userContent.map((content) => `{"role": "user","content":${content}, "n":1.0}`),
  userContent.map((content) => `{"content": ${content},"role":"user"}`),
  assistantContent.map((content) => `{"role":"assistant","content":${content}}`),
  assistantContent.map((content) => `{"content":${content}, "role" :"assistant"}`),
  fc.constantFrom('{ "role":"user" }', '{"role":"system","content":"Mind."}', '{"role":"critic","content":"No."}'),
)

export const field = fc.constantFrom(
  '"model":"claude-test"',
  '"max_tokens": 9007199254740993',
  '"temperature":1.0',
  '"system":"You are an agent."',
  '"system":[{"type":"text","text":"You are","cache_control":{"type":"ephemeral"}},{"type":"text","text":"an agent."}]',
  '"tools":[{"name":"search","input_schema":{"type":"object"}}]',
  '"tool_choice":{"type":"auto","disable_parallel_tool_use":true}',
  '"thinking":{"type":"enabled","budget_tokens":1024}',
  '"metadata":{"user_id":"u-1"}',
  '"stream":true',
)

const keyOf = (member: string) => member.slice(0, member.indexOf(':'))

/** A body with its messages and other fields in any order; `messages` is not empty. */
export const bodyText = fc
  .tuple(
    fc.uniqueArray(field, { maxLength: 7, selector: keyOf }),
    fc.array(messageText, { minLength: 1, maxLength: 6 }),
    fc.nat({ max: 7 }),
    fc.constantFrom('', ' ', '\n  '),
  )
  .map(([fields, messages, at, space]) => {
    const listed = `"messages":${space}[${space}${messages.join(`,${space}`)}${space}]`
    return `{${space}${[...fields.slice(0, at), listed, ...fields.slice(at)].join(`,${space}`)}${space}}`
  })
