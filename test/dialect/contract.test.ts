/** Runs the contract of dialects for each of them, and for one of an API that Governor does not know. */
import { chat } from '../../src/dialect/chat/index.ts'
import { gemini } from '../../src/dialect/gemini/index.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'
import { generated, generatedEvents } from '../support/gemini.ts'
import { events, message } from '../support/messages.ts'
import { type Answer, chunks, completion } from '../support/provider.ts'
import { eventTexts, responseEvents, responseObject } from '../support/responses.ts'
import { toy } from '../support/toy-dialect.ts'
import { dialectContract } from './contract.ts'

const REQUEST = { model: 'm', messages: [], stream: true, stream_options: { include_usage: true } }
const CALLS = [
  { id: 'a', name: 'read', arguments: '{"file":"ü"}' },
  { id: 'b', name: 'search', arguments: '{"query":"x"}' },
  { id: 'c', name: 'read', arguments: '{"file":"b"}' },
]
const OBJECTS = CALLS.map((call) => ({ ...call, arguments: JSON.parse(call.arguments) as object }))
const TEXT = 'Let me see. '

dialectContract('Chat Completions', {
  dialect: chat,
  path: '/v1/chat/completions',
  request:
    '{"model":"m","tools":[{"type":"function","function":{"name":"read"}}],"messages":[{"role":"user","content":"Go."}]}',
  whole: (answer) => completion(REQUEST, answer, 1),
  frames: (answer) => chunks(REQUEST, answer, 1),
  calling: { text: TEXT, calls: CALLS },
})

dialectContract('Messages', {
  dialect: messages,
  path: '/v1/messages',
  request: '{"model":"m","system":"Be short.","tools":[{"name":"read"}],"messages":[{"role":"user","content":"Go."}]}',
  whole: (answer) => message(REQUEST, answer, 1),
  frames: (answer) => events(REQUEST, answer, 1),
  calling: {
    blocks: [
      { type: 'thinking', thinking: 'Hm. "tool_use"', signature: 'c2lnbmVk' },
      { type: 'server_tool_use', id: 's', name: 'web_search', input: { query: 'x' } },
    ],
    text: TEXT,
    calls: OBJECTS,
  } as Answer,
})

dialectContract('Responses', {
  dialect: responses,
  path: '/v1/responses',
  request:
    '{"model":"m","store":false,"instructions":"Be short.","tools":[{"type":"function","name":"read"}],"input":[{"role":"user","content":"Go."},{"role":"assistant","content":"Hm."},{"role":"user","content":"Go on."}]}',
  whole: (answer) => responseObject(REQUEST, answer, 1),
  frames: (answer) => eventTexts(responseEvents(responseObject(REQUEST, answer, 1))),
  calling: { reasoning: 'x', text: TEXT, calls: CALLS },
})

dialectContract('Gemini', {
  dialect: gemini,
  path: '/v1beta/models/m:generateContent',
  request:
    '{"systemInstruction":{"parts":[{"text":"Be short."}]},"tools":[{"functionDeclarations":[{"name":"read"}]}],"contents":[{"role":"user","parts":[{"text":"Go."}]}]}',
  whole: (answer) => generated(answer, 1),
  frames: (answer) => generatedEvents(answer, 1),
  calling: {
    blocks: [{ text: 'Hm. "functionCall"', thought: true, thoughtSignature: 'c2lnbmVk' }],
    text: TEXT,
    calls: OBJECTS,
  } as Answer,
})

dialectContract('an API with the model in its path', {
  dialect: toy,
  path: '/v1/toys/m:ask',
  request:
    '{"tools":[{"functionDeclarations":[{"name":"read"}]}],"contents":[{"role":"user","parts":[{"text":"Go."}]}]}',
  whole: ({ text, calls = [] }) => ({
    candidates: [
      {
        content: {
          role: 'model',
          parts: [
            ...(text === undefined ? [] : [{ text }]),
            ...calls.map(({ name, arguments: args }) => ({ functionCall: { name, args } })),
          ],
        },
        finishReason: 'STOP',
      },
    ],
  }),
  calling: { text: TEXT, calls: OBJECTS },
})
