import { describe, expect, it } from 'vitest'
import { routeOf, upstreamOf } from '../../src/proxy/route.ts'

function sentTo(url: string, target: string, name = 'openai'): string {
  const settings = { url, headers: {} }
  const upstreams = new Map(
    ['openai', 'anthropic', name].map((one) => [one, upstreamOf(one, settings)] as const),
  )
  const { upstream, path } = routeOf('POST', target, [], upstreams)
  return `${upstream.name} ${path}`
}

describe('a path of Azure, whose first segment is the name of an upstream', () => {
  const azure = 'https://team.openai.azure.com'
  const chat = '/openai/deployments/gpt/chat/completions?api-version=2024-10-21'
  it.each([
    [azure, chat, `openai ${chat}`],
    [`${azure}/`, '/openai/v1/responses', 'openai /openai/v1/responses'],
    ['https://team.openai.azure.us', chat, `openai ${chat}`],
    ['https://team.services.ai.azure.com', '/anthropic/v1/messages', 'anthropic /anthropic/v1/messages'],
    [`${azure}/openai`, chat, `openai ${chat}`],
    [`${azure}/openai/v1`, '/openai/v1/responses', 'openai /openai/v1/responses'],
    [`${azure}/openai/v1`, '/v1/responses', 'openai /openai/v1/responses'],
    ['https://api.openai.com', '/openai/v1/responses', 'openai /v1/responses'],
    ['https://azure.com.example', '/openai/v1/responses', 'openai /v1/responses'],
  ])('at %s goes from %s to %s', (url, target, expected) => {
    expect(sentTo(url, target)).toBe(expected)
  })

  it('loses any other name', () => {
    expect(sentTo(azure, `/work${chat}`, 'work')).toBe(`work ${chat}`)
  })
})
