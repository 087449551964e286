import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { startBoth } from '../support/governor.ts'
import { captureTerminal } from '../support/terminal.ts'

type Json = Readonly<Record<string, unknown>>

/** One way in which agents send a picture as the result of a call: the messages of one step. */
interface Way {
  readonly what: string
  readonly path: string
  readonly list: 'messages' | 'input'
  readonly tool: Json
  step(id: string, picture: string): Json[]
}

const asUrl = (picture: string) => `data:image/png;base64,${picture}`
const chatCall = (id: string): Json => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ id, type: 'function', function: { name: 'look', arguments: '{}' } }],
})
const chatPicture = (picture: string): Json => ({ type: 'image_url', image_url: { url: asUrl(picture) } })
const CHAT = {
  path: '/v1/chat/completions',
  list: 'messages',
  tool: { type: 'function', function: { name: 'look', parameters: {} } },
} as const
const RESPONSES = {
  path: '/v1/responses',
  list: 'input',
  tool: { type: 'function', name: 'look', parameters: {} },
} as const
const MESSAGES = {
  path: '/v1/messages',
  list: 'messages',
  tool: { name: 'look', input_schema: { type: 'object' } },
} as const
const messagesCall = (id: string): Json => ({
  role: 'assistant',
  content: [{ type: 'tool_use', id, name: 'look', input: {} }],
})
const messagesPicture = (data: string): Json => ({
  type: 'image',
  source: { type: 'base64', media_type: 'image/png', data },
})
const responsesCall = (id: string): Json => ({
  type: 'function_call',
  call_id: id,
  name: 'look',
  arguments: '{}',
})

const WAYS: readonly Way[] = [
  {
    what: 'a result of Chat Completions',
    ...CHAT,
    step: (id, picture) => [
      chatCall(id),
      {
        role: 'tool',
        tool_call_id: id,
        content: [{ type: 'text', text: 'Here it is.' }, chatPicture(picture)],
      },
    ],
  },
  {
    what: 'a message after a result of Chat Completions',
    ...CHAT,
    step: (id, picture) => [
      chatCall(id),
      { role: 'tool', tool_call_id: id, content: 'Here it is.' },
      {
        role: 'user',
        content: [{ type: 'text', text: 'Attached image(s) from tool result:' }, chatPicture(picture)],
      },
    ],
  },
  {
    what: 'a message without words after a result of Chat Completions',
    ...CHAT,
    step: (id, picture) => [
      chatCall(id),
      { role: 'tool', tool_call_id: id, content: 'Here it is.' },
      { role: 'user', content: [chatPicture(picture)] },
    ],
  },
  {
    what: 'a result of Messages',
    ...MESSAGES,
    step: (id, picture) => [
      messagesCall(id),
      {
        role: 'user',
        content: [{ type: 'tool_result', tool_use_id: id, content: [messagesPicture(picture)] }],
      },
    ],
  },
  {
    what: 'a block beside a result of Messages',
    ...MESSAGES,
    step: (id, picture) => [
      messagesCall(id),
      {
        role: 'user',
        content: [{ type: 'tool_result', tool_use_id: id, content: 'Here it is.' }, messagesPicture(picture)],
      },
    ],
  },
  {
    what: 'a result of Responses',
    ...RESPONSES,
    step: (id, picture) => [
      responsesCall(id),
      {
        type: 'function_call_output',
        call_id: id,
        output: [{ type: 'input_image', image_url: asUrl(picture) }],
      },
    ],
  },
  {
    what: 'a screenshot of Responses',
    ...RESPONSES,
    step: (id, picture) => [
      { type: 'computer_call', call_id: id, action: { type: 'screenshot' } },
      {
        type: 'computer_call_output',
        call_id: id,
        output: { type: 'computer_screenshot', image_url: asUrl(picture) },
      },
    ],
  },
  {
    what: 'a message after a result of Responses',
    ...RESPONSES,
    step: (id, picture) => [
      responsesCall(id),
      { type: 'function_call_output', call_id: id, output: 'Here it is.' },
      { role: 'user', content: [{ type: 'input_image', image_url: asUrl(picture) }] },
    ],
  },
]

const TASK: Json = { role: 'user', content: 'Watch the page.' }

function transcript(way: Way, pictures: readonly string[]): Json[] {
  return [TASK, ...pictures.flatMap((picture, at) => way.step(`c${at}`, picture))]
}

/** Returns the loop header of each response while an agent repeats its call. */
async function loopsOf(way: Way, pictures: readonly string[]): Promise<(string | null)[]> {
  const { url } = await startBoth(() => ({ text: 'ok' }))
  const loops: (string | null)[] = []
  for (let count = 1; count <= pictures.length; count++) {
    const messages = transcript(way, pictures.slice(0, count))
    const response = await fetch(`${url}${way.path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-governor-session': 'one' },
      body: JSON.stringify({ model: 'm', max_tokens: 9, [way.list]: messages, tools: [way.tool] }),
    })
    await response.text()
    loops.push(response.headers.get('x-governor-loop'))
  }
  return loops
}

/** Where replay finds a loop in the same conversation. */
async function replayed(way: Way, pictures: readonly string[]): Promise<unknown[]> {
  const folder = mkdtempSync(join(tmpdir(), 'governor-pictures-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'talk.json')
  writeFileSync(file, JSON.stringify({ [way.list]: transcript(way, pictures) }))
  const terminal = captureTerminal()
  await run(['replay', '--json', file], terminal)
  const lines = terminal.printed.split('\n').filter((line) => line !== '')
  return lines.map((line) => (JSON.parse(line) as Json)['call_index'])
}

describe.each(WAYS)('a picture in $what', (way) => {
  it('makes results different when the pictures differ', async () => {
    expect(await loopsOf(way, ['AAAA', 'BBBB', 'CCCC', 'DDDD'])).toEqual([null, null, null, null])
    expect(await replayed(way, ['AAAA', 'BBBB', 'CCCC', 'DDDD'])).toEqual([])
  })

  it('makes results equal when the pictures are equal', async () => {
    expect(await loopsOf(way, ['AAAA', 'AAAA', 'AAAA'])).toEqual([null, null, 'repetition;count=3'])
    expect(await replayed(way, ['AAAA', 'AAAA', 'AAAA'])).toEqual([2])
  })
})
