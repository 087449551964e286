import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { startProvider } from '../support/provider.ts'

async function asked(headers: Record<string, string>) {
  const provider = await startProvider(() => ({ body: { data: [] } }))
  onTestFinished(() => provider.close())
  const { url } = await startGovernor(provider.url, {
    server: { access_keys: ['team-1'] },
    upstreams: { openai: { url: provider.url, api_key: 'sk-own' } },
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
  ])('is taken from %j, and the upstream gets its own instead', async (headers) => {
    const { status, sent } = await asked(headers)
    expect(status).toBe(200)
    expect(JSON.stringify(sent?.rawHeaders)).toContain('sk-own')
    expect(JSON.stringify(sent?.rawHeaders)).not.toMatch(/team-1|sk-of-the-client/)
  })

  it.each([{}, { authorization: 'Bearer other' }, { authorization: 'Basic team-1' }, { 'x-api-key': '' }])(
    'is none in %j',
    async (headers) => {
      const { status, sent } = await asked(headers as Record<string, string>)
      expect(status).toBe(401)
      expect(sent).toBeUndefined()
    },
  )
})
