import { AzureOpenAI } from 'openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { DIALECTS } from '../../src/dialect/index.ts'
import { routeOf, upstreamOf } from '../../src/proxy/route.ts'
import { startGovernor } from '../support/governor.ts'
import { startProvider } from '../support/provider.ts'

const PUBLIC = { openai: 'https://api.openai.com', anthropic: 'https://api.anthropic.com' }

function sentTo(url: string, target: string, more: { name?: string; strip_name?: boolean } = {}): string {
  const { name = 'work', strip_name = false } = more
  const settings = { url, headers: {}, strip_name }
  const upstreams = new Map([
    ['openai', upstreamOf('openai', settings, PUBLIC.openai)],
    ['anthropic', upstreamOf('anthropic', settings, PUBLIC.anthropic)],
    [name, upstreamOf(name, settings)],
  ])
  const { upstream, path } = routeOf({ upstreams, dialects: DIALECTS }, 'POST', target, [])
  return `${upstream.name} ${path}`
}

describe('the name of a built-in upstream at the start of a path', () => {
  const azure = 'https://team.openai.azure.com'
  const chat = '/openai/deployments/gpt/chat/completions?api-version=2024-10-21'
  it.each([
    [azure, chat, `openai ${chat}`],
    [`${azure}/`, '/openai/v1/responses', 'openai /openai/v1/responses'],
    ['https://team.services.ai.azure.com', '/anthropic/v1/messages', 'anthropic /anthropic/v1/messages'],
    ['https://gateway.example/azure', chat, `openai /azure${chat}`],
    ['http://127.0.0.1:4000', '/openai/v1/responses', 'openai /openai/v1/responses'],
    ['https://bedrock-runtime.us-west-2.amazonaws.com', '/openai', 'openai /openai'],
    ['https://api.openai.com:8443', '/openai/v1/responses', 'openai /openai/v1/responses'],
  ])("is kept for %s, where it is part of the host's own paths: %s goes to %s", (url, target, expected) => {
    expect(sentTo(url, target)).toBe(expected)
  })

  it.each([
    ['https://api.openai.com', '/openai/v1/responses', 'openai /v1/responses'],
    ['https://api.openai.com/v1', '/openai/v1/responses', 'openai /v1/responses'],
    ['https://api.anthropic.com', '/anthropic/v1/messages', 'anthropic /v1/messages'],
  ])('is removed for %s, the public host: %s goes to %s', (url, target, expected) => {
    expect(sentTo(url, target)).toBe(expected)
  })

  it.each([
    [`${azure}/openai`, chat, `openai ${chat}`],
    ['https://api.groq.com/openai/v1', '/openai/v1/responses', 'openai /openai/v1/responses'],
    ['https://api.groq.com/openai/v1', '/v1/responses', 'openai /openai/v1/responses'],
  ])('is not repeated if the URL %s already contains it: %s goes to %s', (url, target, expected) => {
    expect(sentTo(url, target)).toBe(expected)
  })

  it('is removed if strip_name is true', () => {
    const url = 'http://127.0.0.1:4000'
    expect(sentTo(url, '/openai/v1/responses', { strip_name: true })).toBe('openai /v1/responses')
  })
})

describe('the name of a configured upstream', () => {
  it.each(['work', 'constructor'])('%s is always removed from the path', (name) => {
    const url = 'https://team.openai.azure.com'
    expect(sentTo(url, `/${name}/openai/v1/responses`, { name })).toBe(`${name} /openai/v1/responses`)
  })
})

describe('the Azure client of the openai package', () => {
  it('reaches a resource on any host, is guarded, and keeps its path', async () => {
    const provider = await startProvider(() => ({ text: 'Hello.' }))
    onTestFinished(() => provider.close())
    const { url } = await startGovernor(provider.url)
    const client = new AzureOpenAI({ endpoint: url, apiKey: 'k', apiVersion: '2024-10-21', maxRetries: 0 })
    const tool = { type: 'function' as const, function: { name: 'search', parameters: {} } }
    const { data, response } = await client.chat.completions
      .create({ model: 'gpt', messages: [{ role: 'user', content: 'Hi' }], tools: [tool] })
      .withResponse()
    expect(data.choices[0]?.message.content).toBe('Hello.')
    expect(response.headers.get('x-governor-iteration')).toMatch(/^1\//)
    expect(provider.requests.map(({ target }) => target)).toEqual([
      '/openai/deployments/gpt/chat/completions?api-version=2024-10-21',
    ])
  })
})
