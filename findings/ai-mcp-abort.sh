#!/usr/bin/env bash
# A tool of an MCP server that works for three seconds, and a run that is aborted after half a second.
#
# Seen with @ai-sdk/mcp 2.0.99 with ai 7.0.173, beside @openai/agents 0.20.0, Node 20.20: both runs end at once. OpenAI Agents tells the server
# that the call is cancelled, so that it can stop; LangChain, Mastra and Strands do so too. @ai-sdk/mcp tells it nothing: what was asked (a crawl,
# a query, a model of its own) goes on to its end, and the result is thrown away. A budget or a stop button that aborts runs ends what the
# model spends, and not what its tools do.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error ai@7.0.173 @ai-sdk/mcp@2.0.99 @ai-sdk/openai-compatible@3.0.92 @openai/agents@0.20.0 \
  openai@6.49.0 @modelcontextprotocol/sdk@1.32.2 zod@4.6.7
cat >tool.mjs <<'JS'
import { appendFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js'
import { z } from 'zod'

const log = (line) => appendFileSync(process.env.LOG, `${line}\n`)
const server = new McpServer({ name: 'crawler', version: '1.0.0' })
const settings = { description: 'Crawls a site', inputSchema: { site: z.string() } }
server.registerTool('crawl', settings, async ({ site }, { signal }) => {
  log('begun')
  await sleep(3000, undefined, { signal }).catch(() => {})
  log(signal.aborted ? 'cancelled' : 'crawled')
  return { content: [{ type: 'text', text: `All of ${site}` }] }
})
await server.connect(new StdioServerTransport())
JS
cat >run.mjs <<'JS'
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { createMCPClient } from '@ai-sdk/mcp'
import { Experimental_StdioMCPTransport as AiTransport } from '@ai-sdk/mcp/mcp-stdio'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Agent, MCPServerStdio, OpenAIChatCompletionsModel, Runner } from '@openai/agents'
import { generateText, isStepCount } from 'ai'
import OpenAI from 'openai'
import { serve, verdict } from './server.mjs'

const prompt = 'Which city?'
const runs = {
  async '@ai-sdk/mcp'(baseURL, server, abortSignal) {
    const client = await createMCPClient({ transport: new AiTransport(server) })
    const model = createOpenAICompatible({ name: 'local', apiKey: 'k', baseURL })('m')
    await generateText({ model, prompt, tools: await client.tools(), stopWhen: isStepCount(5), abortSignal })
  },
  async '@openai/agents'(baseURL, server, signal) {
    const crawler = new MCPServerStdio({ name: 'crawler', ...server })
    await crawler.connect()
    const model = new OpenAIChatCompletionsModel(new OpenAI({ apiKey: 'k', baseURL }), 'm')
    const agent = new Agent({ name: 'a', model, mcpServers: [crawler] })
    await new Runner({ tracingDisabled: true }).run(agent, prompt, { signal })
  },
}

const seen = {}
for (const [name, run] of Object.entries(runs)) {
  const log = `${process.cwd()}/${Object.keys(seen).length}.log`
  const server = { command: process.execPath, args: ['tool.mjs'], env: { PATH: process.env.PATH, LOG: log } }
  const { url } = await serve(({ tools }, number) =>
    number === 1 ? { calls: [{ name: tools[0].function.name, arguments: { site: 'example.com' } }] } : { text: 'Oslo.' },
  )
  const controller = new AbortController()
  const ended = run(url, server, controller.signal).catch(() => {})
  while (!existsSync(log)) await sleep(50)
  await sleep(500)
  controller.abort()
  const aborted = Date.now()
  await ended
  const runEnds = Date.now() - aborted < 2000 ? 'at once' : 'later'
  while (readFileSync(log, 'utf8').split('\n').length < 3) await sleep(50)
  seen[name] = { 'the run ends': runEnds, 'the call': readFileSync(log, 'utf8').trim().replace('\n', ', ') }
}
verdict(seen, {
  '@ai-sdk/mcp': { 'the run ends': 'at once', 'the call': 'begun, crawled' },
  '@openai/agents': { 'the run ends': 'at once', 'the call': 'begun, cancelled' },
})
process.exit()
JS
node run.mjs
