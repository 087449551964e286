#!/usr/bin/env bash
# A deep agent and a tool whose large result is one line, as the JSON of an API is.
#
# Seen with deepagents 1.14.1, langchain 1.5.14, @langchain/core 1.4.0, @langchain/openai 1.6.0, Node 20.20: a result of 303,891 characters is put into a
# file, and the model is told to read that with `read_file`, 100 lines at a time. On one line, 79,587 characters of it can be
# read and no more: offsets are in lines, and one past the line is answered with an empty page and no error. `read_file` advises
# `execute(command='jq …')`, a tool that the agent has not got, and `grep`, which finds a word at the end of the line, shows the same
# beginning of it. Either costs about 20,000 tokens a time. The same rows on 5,000 lines are read to the last one.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error deepagents@1.14.1 langchain@1.5.14 @langchain/core@1.4.0 @langchain/openai@1.6.0 zod@4.6.7
cat >run.mjs <<'JS'
import { ChatOpenAI } from '@langchain/openai'
import { createDeepAgent } from 'deepagents'
import { tool } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const rows = Array.from({ length: 5000 }, (_, number) => ({ row: number, text: 'a tower in the north of a long country' }))
const marker = '"row":4999'

/** Lets a model read the file of a result with each of the calls; returns the results that it is sent. */
async function results(text, calls) {
  const { url, bodies } = await serve((_, number) => {
    if (number === 1) return { calls: [{ name: 'rows', arguments: {} }] }
    const [name, more] = calls[number - 2] ?? []
    return name ? { calls: [{ name, arguments: more }] } : { text: 'Oslo.' }
  })
  const agent = createDeepAgent({
    model: new ChatOpenAI({ model: 'm', apiKey: 'k', configuration: { baseURL: url } }),
    tools: [tool(() => text, { name: 'rows', description: 'All rows', schema: z.object({}) })],
  })
  await agent.invoke({ messages: [{ role: 'user', content: 'What is in the last row?' }] })
  const sent = bodies.at(-1).messages.filter(({ role }) => role === 'tool').slice(1)
  return {
    tools: bodies[0].tools.map(({ function: { name } }) => name),
    sent: sent.map(({ content }) => [content].flat().map((part) => part.text ?? part).join('')),
  }
}

const file_path = '/large_tool_results/call_1_0.txt'
const read = (offset) => ['read_file', { file_path, offset, limit: 100 }]
const grep = ['grep', { pattern: marker, path: '/large_tool_results' }]
const text = JSON.stringify(rows)
const one = await results(text, [read(0), read(1), read(100), grep])
const many = await results(rows.map((row) => JSON.stringify(row)).join('\n'), [read(0), read(4900)])
const [beginning, second, past, found] = one.sent
verdict(
  {
    characters: text.length,
    read: /\d+ of \d+ chars/.exec(beginning)[0],
    advises: /\w+\(command='jq/.exec(beginning)[0],
    tools: one.tools.join(' '),
    offset1: second,
    offset100: past,
    grepIsLong: found.length > 79_000,
    oneLineShowsTheLastRow: one.sent.some((result) => result.includes(marker)),
    linesShowTheLastRow: many.sent.some((result) => result.includes(marker)),
  },
  {
    characters: 303891,
    read: '79587 of 303891 chars',
    advises: "execute(command='jq",
    tools: 'rows ls read_file write_file edit_file delete glob grep task',
    offset1: '@@ lines 2-2 @@\n',
    offset100: '@@ lines 101-101 @@\n',
    grepIsLong: true,
    oneLineShowsTheLastRow: false,
    linesShowTheLastRow: true,
  },
)
JS
node run.mjs
