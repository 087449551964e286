#!/usr/bin/env bash
# LangChain's ChatOpenAI over Responses, with a `tool_choice` that is a word: `none`, `required`, `any` or `auto`.
#
# That the word is left out was reported to its authors (langchain-ai/langchainjs#11332, open in August 2026).
# Seen with @langchain/openai 1.6.0, @langchain/core 1.4.0, langchain 1.5.14, Node 20.20: over Chat Completions the word is sent
# (`any` as `required`), over Responses it is left out in silence; only the name of a tool is sent there. So a model that is
# told `none` may call tools, and one that is told `required` may answer in words. The same code changes sides without
# `useResponsesApi`: models such as gpt-5.6, and any model beside a tool of OpenAI's own such as `web_search`, go over Responses.
# An agent of `createAgent` with a `toolStrategy` forces its answer with such a word: here a model that answers in words wherever it
# may leaves `structuredResponse` unset over Responses, without an error; over Chat Completions the same model gives the object.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error langchain@1.5.14 @langchain/core@1.4.0 @langchain/openai@1.6.0 zod@4.6.7
cat >run.mjs <<'JS'
import { ChatOpenAI } from '@langchain/openai'
import { createAgent, tool, toolStrategy } from 'langchain'
import { z } from 'zod'
import { serve, verdict } from './server.mjs'

const nameOf = (choice) => choice?.name ?? choice?.function?.name ?? choice ?? 'nothing'
const { url, bodies } = await serve(({ tools = [], tool_choice: choice }) => {
  const output = tools.map((tool) => nameOf(tool)).find((name) => String(name).startsWith('extract'))
  return choice === 'required' && output ? { calls: [{ name: output, arguments: { city: 'Oslo' } }] } : { text: 'Oslo.' }
})
const look = tool(() => 'nothing', { name: 'look', description: 'Look it up', schema: z.object({ page: z.number() }) })
const openai = (model, options = {}) => new ChatOpenAI({ model, apiKey: 'k', configuration: { baseURL: url }, ...options })

async function sent(model, tools = [look]) {
  const choices = {}
  for (const choice of ['none', 'required', 'any', 'auto', 'look']) {
    await model.bindTools(tools, { tool_choice: choice }).invoke('Which city?')
    choices[choice] = nameOf(bodies.at(-1).tool_choice)
  }
  return choices
}

async function structured(model) {
  const agent = createAgent({ model, tools: [look], responseFormat: toolStrategy(z.object({ city: z.string() })) })
  const { structuredResponse } = await agent.invoke({ messages: [{ role: 'user', content: 'Which city?' }] })
  return structuredResponse ?? null
}

const responses = { useResponsesApi: true }
const dropped = { none: 'nothing', required: 'nothing', any: 'nothing', auto: 'nothing', look: 'look' }
verdict(
  {
    chat: await sent(openai('gpt-5')),
    responses: await sent(openai('gpt-5', responses)),
    gpt56: await sent(openai('gpt-5.6')),
    besideWebSearch: await sent(openai('gpt-5'), [look, { type: 'web_search' }]),
    agentOverChat: await structured(openai('gpt-5')),
    agentOverResponses: await structured(openai('gpt-5', responses)),
  },
  {
    chat: { none: 'none', required: 'required', any: 'required', auto: 'auto', look: 'look' },
    responses: dropped,
    gpt56: dropped,
    besideWebSearch: dropped,
    agentOverChat: { city: 'Oslo' },
    agentOverResponses: null,
  },
)
JS
node run.mjs
