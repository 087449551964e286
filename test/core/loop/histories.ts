/** Histories of calls and their results, as requests of each API hold them. */
import type { Conversation } from '../../../src/core/conversation/conversation.ts'
import { chat } from '../../../src/dialect/chat/index.ts'
import { messages } from '../../../src/dialect/messages/index.ts'
import { responses } from '../../../src/dialect/responses/index.ts'

/** One call with its result. `resultId`: the id that the result names; the call's if it is not given. */
export interface Made {
  readonly id?: string | undefined
  readonly resultId?: string | undefined
  readonly name: string
  readonly arguments: string
  readonly result: string
}

type Order = <Item>(results: readonly Item[]) => readonly Item[]

const DIALECTS = { chat, messages, responses }

export type Api = keyof typeof DIALECTS

const resultIdOf = (made: Made) => ('resultId' in made ? made.resultId : made.id)

/** The messages of one response and its results. */
const STEPS: Readonly<Record<Api, (made: readonly Made[], order: Order) => readonly object[]>> = {
  chat: (made, order) => [
    {
      role: 'assistant',
      content: null,
      tool_calls: made.map(({ id, name, arguments: text }) => ({
        id,
        type: 'function',
        function: { name, arguments: text },
      })),
    },
    ...order(made.map((one) => ({ role: 'tool', tool_call_id: resultIdOf(one), content: one.result }))),
  ],
  messages: (made, order) => [
    {
      role: 'assistant',
      content: made.map(({ id, name, arguments: text }) => ({ type: 'tool_use', id, name, input: JSON.parse(text) })),
    },
    {
      role: 'user',
      content: order(made.map((one) => ({ type: 'tool_result', tool_use_id: resultIdOf(one), content: one.result }))),
    },
  ],
  responses: (made, order) => [
    ...made.map(({ id, name, arguments: text }) => ({ type: 'function_call', call_id: id, name, arguments: text })),
    ...order(made.map((one) => ({ type: 'function_call_output', call_id: resultIdOf(one), output: one.result }))),
  ],
}

/** Returns the conversation of a request. `order`: how the results of a response stand; `input`: what else it holds. */
export function conversationIn(
  api: Api,
  turns: readonly (readonly Made[])[],
  order: Order = (results) => results,
  input: readonly object[] = [{ role: 'user', content: 'go' }],
): Conversation {
  const list = [...input, ...turns.flatMap((made) => STEPS[api](made, order))]
  const key = api === 'responses' ? 'input' : 'messages'
  const body = Buffer.from(JSON.stringify({ model: 'm', max_tokens: 100, [key]: list }))
  const request = DIALECTS[api].read({ path: '', body })
  if (!request) throw new Error('not a conversation')
  return request.conversation
}
