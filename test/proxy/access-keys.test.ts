import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { startProvider } from '../support/provider.ts'

async function asked(headers: Record<string, string>, held: object = { api_key: 'sk-own' }) {
  const provider = await startProvider(() => ({ body: { data: [] } }))
  onTestFinished(() => provider.close())
  const { url } = await startGovernor(provider.url, {
    server: { access_keys: ['team-1'] },
    upstreams: { openai: { url: provider.url, ...held } },
  })
  const response = await fetch(`${url}/v1/models`, { method: 'POST', headers })
  await response.arrayBuffer()
  return { status: response.status, sent: provider.requests[0] }
}

describe('an access key', () => {
  it.each([
    { authorization: 'Bearer team-1' },
    { 'x-api-key': 'team-1' },
    { 'api-key': 'team-1' },
    { 'x-goog-api-key': 'team-1' },
    { authorization: 'Bearer sk-of-the-client', 'x-api-key': 'team-1' },
  ])('is accepted in %j, and the upstream gets its own key instead', async (headers) => {
    const { status, sent } = await asked(headers)
    expect(status).toBe(200)
    expect(JSON.stringify(sent?.rawHeaders)).toContain('sk-own')
    expect(JSON.stringify(sent?.rawHeaders)).not.toMatch(/team-1|sk-of-the-client/)
  })

  it.each([{}, { authorization: 'Bearer other' }, { authorization: 'Basic team-1' }, { 'x-api-key': '' }])(
    'is missing in %j',
    async (headers) => {
      const { status, sent } = await asked(headers as Record<string, string>)
      expect(status).toBe(401)
      expect(sent).toBeUndefined()
    },
  )
})

describe("an upstream's key in a configured header", () => {
  it.each([
    ...['Authorization', 'x-api-key', 'api-key', 'X-Goog-Api-Key', 'Cookie', 'Proxy-Authorization'],
    ...['cf-aig-authorization', 'Helicone-Auth', 'CF-Access-Client-Secret', 'Ocp-Apim-Subscription-Key'],
    ...['x-amz-security-token', 'X-Gateway-Credential', 'x-apikey'],
  ])('named %s is used only for clients with an access key', async (name) => {
    const held = { headers: { [name]: 'sk-own' } }
    for (const headers of [{}, { authorization: 'Bearer other' }] as Record<string, string>[]) {
      const { status, sent } = await asked(headers, held)
      expect(status).toBe(401)
      expect(sent).toBeUndefined()
    }
    const { status, sent } = await asked({ authorization: 'Bearer team-1', 'x-api-key': 'sk-client' }, held)
    expect(status).toBe(200)
    expect(sent?.header(name.toLowerCase())).toBe('sk-own')
    // The client's other keys go upstream, unless Governor's key replaces them; the access key never does.
    if (name.toLowerCase() !== 'x-api-key') expect(sent?.header('x-api-key')).toBe('sk-client')
    expect(JSON.stringify(sent?.rawHeaders)).not.toContain('team-1')
  })

  it.each([
    { headers: { 'X-Team': 'blue', 'OpenAI-Organization': 'org-1', 'anthropic-version': '2023-06-01' } },
    { headers: { Authorization: '' } },
    {},
  ])('is not assumed in %j: every client uses its own key', async (held) => {
    const { status, sent } = await asked({ 'x-api-key': 'sk-client' }, held)
    expect(status).toBe(200)
    expect(sent?.header('x-api-key')).toBe('sk-client')
  })
})
