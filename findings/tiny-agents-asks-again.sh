#!/usr/bin/env bash
# The tiny agents of Hugging Face, whose source says that a question has at most 10 steps, and a model that reads pages and answers in 20 words.
#
# Seen with @huggingface/tiny-agents 0.3.4, @huggingface/mcp-client 0.2.3, @huggingface/inference 4.13.30, Node 20.20. A question for which a page was
# read is answered twice: after the answer the model is asked once more, for calls. As the first piece of that second answer is no call, it is
# left there, and stands in no history; the provider is not told so, and generates it to its end. Where the model reads 30 pages it is
# asked 31 times: the limit is looked at only after an answer without calls, so that it ends no run that calls on, and saves such a
# run the second answer alone.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @huggingface/tiny-agents@0.3.4 @huggingface/mcp-client@0.2.3 @huggingface/inference@4.13.30 \
  @modelcontextprotocol/sdk@1.32.2 zod@3.25.76
cat >pages.mjs <<'JS'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { z } from 'zod'

const server = new McpServer({ name: 'pages', version: '1.0.0' })
server.tool('read', 'Reads a page', { page: z.number() }, ({ page }) => ({
  content: [{ type: 'text', text: `Page ${page}` }],
}))
await server.connect(new StdioServerTransport())
JS
cat >run.mjs <<'JS'
import { once } from 'node:events'
import http from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent } from '@huggingface/tiny-agents'
import { verdict } from './server.mjs'

/** A provider that asks for a number of pages, and answers what follows in 20 words, a word in 50 ms. */
async function serveWords(pages) {
  const requests = []
  const server = http.createServer(async (request, reply) => {
    let body = ''
    for await (const piece of request) body += piece
    const number = requests.push({ messages: JSON.parse(body).messages, words: 0 })
    const write = (delta, finish_reason = null) => {
      const choices = [{ index: 0, delta, finish_reason }]
      reply.write(
        `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm', choices })}\n\n`,
      )
    }
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    if (number <= pages) {
      const call = { name: 'read', arguments: JSON.stringify({ page: number }) }
      write({ role: 'assistant', tool_calls: [{ index: 0, id: `call_${number}`, type: 'function', function: call }] })
    } else
      while (requests[number - 1].words < 20 && !reply.destroyed) {
        write({ role: 'assistant', content: 'word ' })
        requests[number - 1].words++
        await sleep(50)
      }
    write({}, number <= pages ? 'tool_calls' : 'stop')
    reply.end('data: [DONE]\n\n')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return { url: `http://127.0.0.1:${server.address().port}/v1`, requests }
}

async function ask(pages) {
  const { url, requests } = await serveWords(pages)
  const servers = [{ type: 'stdio', config: { command: process.execPath, args: ['pages.mjs'] } }]
  const agent = new Agent({ endpointUrl: url, model: 'm', apiKey: 'k', servers, prompt: 'You help.' })
  await agent.loadTools()
  const run = async (question) => {
    let text = ''
    for await (const chunk of agent.run(question)) text += chunk.choices?.[0]?.delta?.content ?? ''
    return text.split('word').length - 1
  }
  const words = await run('Which city?')
  const asked = requests.length
  await sleep(2000)
  const generated = requests.reduce((sum, request) => sum + request.words, 0)
  await run('And when?')
  const answers = requests[asked].messages.filter(({ role, tool_calls: calls }) => role === 'assistant' && !calls)
  await agent.cleanup()
  return {
    requests: asked,
    'words that the user sees': words,
    'words that the provider generates': generated,
    'answers in the history of the next question': answers.length,
  }
}

const seen = {}
for (const pages of [0, 1, 30]) seen[`${pages} pages`] = await ask(pages)
const twice = {
  'words that the user sees': 20,
  'words that the provider generates': 40,
  'answers in the history of the next question': 1,
}
verdict(seen, {
  '0 pages': { requests: 1, ...twice, 'words that the provider generates': 20 },
  '1 pages': { requests: 3, ...twice },
  '30 pages': { requests: 31, ...twice, 'words that the provider generates': 20 },
})
process.exit()
JS
node run.mjs
