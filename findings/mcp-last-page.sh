#!/usr/bin/env bash
# An MCP client and a server with more tools than fit on one page of its list.
#
# Seen with @modelcontextprotocol/sdk 1.32.2, Node 20.20: the client compares a tool's structured result with its output schema, and throws at a
# difference, if the tool stood on the page that was listed last. Each page makes it forget the schemas of those before, so that of 120 tools on pages of 50
# the last 20 are compared; results of the first 100 come back as they are, and a server with one page has all of its tools compared.
# @modelcontextprotocol/client 2.4.0 compares all, and lists all pages itself when it is asked for the list without a cursor.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 zod@4.6.7
cat >run.mjs <<'JS'
import { once } from 'node:events'
import http from 'node:http'
import * as second from '@modelcontextprotocol/client'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { verdict } from './server.mjs'

const TOOLS = 120
const outputSchema = { type: 'object', properties: { pages: { type: 'number' } }, required: ['pages'] }
const tools = Array.from({ length: TOOLS }, (_, number) => ({
  name: `tool_${number}`,
  inputSchema: { type: 'object' },
  outputSchema,
}))

/** Starts an MCP server whose tools are on pages of a size, and whose every result says its number in words. */
async function serveTools(size) {
  let lists = 0
  const answers = {
    initialize: ({ protocolVersion }) => ({
      protocolVersion,
      capabilities: { tools: {} },
      serverInfo: { name: 'server', version: '1' },
    }),
    'tools/list': ({ cursor = '0' } = {}) => {
      lists++
      const end = Number(cursor) + size
      return { tools: tools.slice(Number(cursor), end), ...(end < TOOLS ? { nextCursor: String(end) } : {}) }
    },
    'tools/call': () => ({ content: [], structuredContent: { pages: 'ten' } }),
  }
  const server = http.createServer(async (request, reply) => {
    let text = ''
    for await (const piece of request) text += piece
    if (request.method !== 'POST') return reply.writeHead(405).end()
    const { id, method, params } = JSON.parse(text)
    if (id === undefined) return reply.writeHead(202).end()
    reply.writeHead(200, { 'content-type': 'application/json' })
    reply.end(JSON.stringify({ jsonrpc: '2.0', id, result: answers[method](params) }))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  server.unref()
  return { url: new URL(`http://127.0.0.1:${server.address().port}/mcp`), lists: () => lists }
}

/** Lists all tools, calls each one, and says how many calls came back and how many threw. */
async function callAll(client, transport, lists) {
  await client.connect(transport)
  let cursor
  do cursor = (await client.listTools({ cursor })).nextCursor
  while (cursor)
  const results = await Promise.allSettled(tools.map(({ name }) => client.callTool({ name, arguments: {} })))
  const returned = results.filter(({ status }) => status === 'fulfilled').length
  return { lists: lists(), returned, threw: TOOLS - returned }
}

const about = { name: 'client', version: '1' }
const seen = {}
for (const size of [50, TOOLS]) {
  const one = await serveTools(size)
  const two = await serveTools(size)
  seen[`pages of ${size}`] = {
    'sdk 1': await callAll(new Client(about), new StreamableHTTPClientTransport(one.url), one.lists),
    'client 2': await callAll(
      new second.Client(about),
      new second.StreamableHTTPClientTransport(two.url),
      two.lists,
    ),
  }
}
verdict(seen, {
  'pages of 50': {
    'sdk 1': { lists: 3, returned: 100, threw: 20 },
    'client 2': { lists: 3, returned: 0, threw: 120 },
  },
  'pages of 120': {
    'sdk 1': { lists: 1, returned: 0, threw: 120 },
    'client 2': { lists: 1, returned: 0, threw: 120 },
  },
})
process.exit()
JS
node run.mjs
