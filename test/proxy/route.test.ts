import fc from 'fast-check'
import { AzureOpenAI } from 'openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { DIALECTS } from '../../src/dialect/index.ts'
import { routeOf, upstreamOf } from '../../src/proxy/door/route.ts'
import { ask } from '../support/admin.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { startProvider } from '../support/provider.ts'
import { startRaw } from '../support/raw.ts'

const PUBLIC = { openai: 'https://api.openai.com', anthropic: 'https://api.anthropic.com' }

function sentTo(url: string, target: string, more: { name?: string; strip_name?: boolean } = {}): string {
  const { name = 'work', strip_name = false } = more
  const settings = { url, headers: {}, strip_name }
  const upstreams = new Map([
    ['openai', upstreamOf('openai', settings, PUBLIC.openai)],
    ['anthropic', upstreamOf('anthropic', settings, PUBLIC.anthropic)],
    [name, upstreamOf(name, settings)],
  ])
  const { upstream, path } = routeOf({ upstreams, dialects: DIALECTS }, { method: 'POST', target, headers: [] })
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

const GUARDED = [
  ...['/v1/chat/completions', '/v1/responses', '/v1/messages', '/v4/chat/completions', '/api/v1/responses'],
  ...['/openai/v1/chat/completions', '/v1beta/openai/chat/completions', '/anthropic/v1/messages'],
]

/** Paths of providers whose first segment is the name of no upstream. */
const OF_PROVIDERS = [
  ...['/v1/chat/completions', '/chat/completions', '/responses', '/v1/messages', '/v1/messages/count_tokens'],
  ...['/v1beta/openai/chat/completions', '/api/v1/chat/completions', '/api/paas/v4/chat/completions'],
  ...[
    '/api/v3/responses',
    '/api/anthropic/v1/messages',
    '/inference/v1/chat/completions',
    '/inference/chat/completions',
  ],
  ...['/compatible-mode/v1/chat/completions', '/apps/anthropic/v1/messages', '/serverless/v1/chat/completions'],
  ...[
    '/coding/v1/messages',
    '/zen/v1/responses',
    '/engines/v1/chat/completions',
    '/engines/llama.cpp/v1/chat/completions',
  ],
  ...[
    '/client/v4/accounts/0a1b/ai/v1/chat/completions',
    '/serving-endpoints/chat/completions',
    '/beta/chat/completions',
  ],
  ...[
    '/v1/projects/p/locations/l/endpoints/openapi/chat/completions',
    '/v3/openai/chat/completions',
    '/codex/responses',
  ],
  ...['/models/chat/completions', '/compatibility/v1/chat/completions', '/v1/account/gateway/compat/chat/completions'],
  ...['/v1/threads/x/messages', '/x/y', '/some/v1/embeddings', '/some/v1/models', '/deep/v1/chat/completions'],
]

describe('a path that begins with no name of an upstream', () => {
  it('is refused with 404 if a whole API path stands behind, by any method, and reaches nobody', async () => {
    const upstream = await startRaw()
    const { url, events } = await startGovernor(upstream.url, {
      upstreams: { openai: { url: `${upstream.url}/deep` }, openrouter: { url: upstream.url } },
    })
    const word = fc.stringMatching(/^[A-Za-z][A-Za-z0-9_-]{1,20}$/)
    const name = fc.oneof(fc.constantFrom('opnrouter', 'OpenRouter', 'openrouter2', 'open-router', 'constructor'), word)
    const known =
      /^(?:v\d.*|openai|anthropic|openrouter|deep|health|ready|metrics|governor|api|apps|ai|llm|zen|beta|chat)$/i
    await fc.assert(
      fc.asyncProperty(
        name.filter((one) => !known.test(one) || one === 'OpenRouter'),
        fc.constantFrom('/', '//'),
        fc.constantFrom(...GUARDED),
        fc.constantFrom('POST', 'GET', 'PUT', 'OPTIONS'),
        async (first, start, path, method) => {
          const { status, json } = await ask(url, `${start}${first}${path}?x=1`, { method })
          expect(status).toBe(404)
          expect(json).toMatchObject({
            error: { message: expect.stringContaining(`no upstream named ${first},`) },
          })
        },
      ),
    )
    expect(events.filter(({ kind }) => kind === 'request_ended')).toEqual(
      events.filter((event) => event.kind === 'request_ended' && event.outcome === 'refused'),
    )
  })

  it('is refused in the words of its API', async () => {
    const { url } = await startGovernor('http://127.0.0.1:1')
    const chat = await ask(url, '/opnrouter/v1/chat/completions', { method: 'POST' })
    expect(chat.json).toMatchObject({ error: { type: 'invalid_request_error', code: 'unknown_upstream' } })
    const messages = await ask(url, '/opnrouter/v1/messages', { method: 'POST' })
    expect(messages.json).toMatchObject({ type: 'error', error: { type: 'not_found_error' } })
  })

  it('is refused after a second slash, which a provider might ignore, also with a name that there is', async () => {
    const { url } = await startGovernor('http://127.0.0.1:1', {
      upstreams: { openrouter: { url: 'http://127.0.0.1:1' } },
    })
    expect((await ask(url, '//openrouter/v1/chat/completions', { method: 'POST' })).status).toBe(404)
  })

  it.each(OF_PROVIDERS)('is relayed where the provider may have it: %s', (path) => {
    const settings = { url: 'https://host.example/deep', headers: {}, strip_name: false }
    const upstreams = new Map(['openai', 'anthropic'].map((name) => [name, upstreamOf(name, settings, PUBLIC.openai)]))
    for (const method of ['POST', 'GET']) {
      const route = routeOf({ upstreams, dialects: DIALECTS }, { method, target: path, headers: [] })
      expect(route.unknownName).toBeUndefined()
      expect(route.path).toBe(`/deep${path}`)
    }
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

describe('a path whose dot segments leave the path of its upstream', () => {
  const leaves = (target: string): boolean => {
    const settings = { url: 'https://host.example/team/v1', headers: {}, strip_name: false }
    const upstreams = new Map(['openai', 'anthropic', 'work'].map((name) => [name, upstreamOf(name, settings)]))
    return routeOf({ upstreams, dialects: DIALECTS }, { method: 'GET', target: `/work${target}`, headers: [] })
      .leavesPrefix
  }
  const encoded = (text: string) => text.replace(/./gs, (one) => `%${one.charCodeAt(0).toString(16).padStart(2, '0')}`)
  const again = (text: string) => text.replaceAll('%', '%25')
  const any = (one: string, ...others: string[]) =>
    fc
      .tuple(fc.constantFrom(one, encoded(one), ...others), fc.nat({ max: 3 }))
      .map(([text, times]) => Array.from({ length: times }).reduce<string>(again, text))
  const dot = any('.', '%2E')
  const slash = any('/', '\\', '%5c', '%2F')
  const more = fc.constantFrom(
    '',
    ';',
    ';a=b',
    ';/',
    '%3b',
    '%3Bx',
    '%253b',
    '%00',
    '%00.png',
    '%20',
    '%09',
    '%23',
    '%3f',
    ',',
  )
  const up = fc.tuple(dot, fc.constantFrom('', '', '%09', '%00'), dot, more).map((parts) => parts.join(''))
  const down = fc.constantFrom('a', 'v2', 'gpt-4.1', 'a;x=1', '..a', 'b..', '%e6%97%a5', 'ft:gpt', 'a%20b')
  const nothing = fc.constantFrom('', '.', '%2e', ';x', '.;x', '%3bx')

  it('is found in every spelling that a server may resolve', () => {
    const segments = fc.array(
      fc.tuple(
        fc.oneof(
          down.map((text) => ({ text, by: 1 })),
          nothing.map((text) => ({ text, by: 0 })),
        ),
        slash,
      ),
    )
    fc.assert(
      fc.property(segments, up, slash, (before, dots, end) => {
        const depth = before.reduce((sum, [{ by }]) => sum + by, 0)
        const start = before.map(([{ text }, separator]) => text + separator).join('')
        expect(leaves(`/${start}${Array.from({ length: depth + 1 }, () => dots).join(end)}${end}x`)).toBe(true)
      }),
      { numRuns: 1_000 },
    )
  })

  it('is not found where its segments only look like dots, or stay inside', () => {
    const name = fc.oneof(
      down,
      fc.constantFrom('...', '....', 'a..b', '-..', '..~', '.well-known', '日本.pdf', '%E6%97%A5..'),
    )
    fc.assert(
      fc.property(fc.array(name), fc.boolean(), (names, goesUp) => {
        expect(leaves(`/${names.map((one) => (goesUp ? `a/${one}/..` : one)).join('/')}`)).toBe(false)
      }),
    )
  })
})

it.each(['/v1/chat/complet%69ons', '/v1/ch%61t%2Fcompletions', '/v1/%6dessages', '/v1/respons%65s'])(
  'a request whose path is percent-encoded is guarded, and arrives as it came: %s',
  async (path) => {
    const { url, provider, events } = await startBoth(() => ({ body: '{}' }))
    const body = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'Go.' }], input: 'Go.', tools: [{}] })
    const response = await fetch(`${url}${path}`, { method: 'POST', body })
    expect(response.headers.get('x-governor-verdict')).toBe('allow')
    expect(provider.requests.map(({ target }) => target)).toEqual([path])
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  },
)
