/** Promise: no page of another origin reads or steers sessions, or uses a key that Governor holds. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { type Answering, closeRaw, connect, listenAnswering, openGovernor } from '../support/raw.ts'

let upstream: Answering
let governor: Awaited<ReturnType<typeof openGovernor>>
beforeAll(async () => {
  upstream = await listenAnswering()
  const { url } = upstream
  const upstreams = {
    openai: { url, api_key: 'held' },
    anthropic: { url, headers: { 'x-api-key': 'held' } },
    named: { url: `${url}/deep`, api_key: 'held' },
  }
  governor = await openGovernor(url, { upstreams }, { websocket: 'tunnel' })
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
})

/** What a browser says about a page from elsewhere; a page's script can't change these fields. */
const PAGES: Readonly<Record<string, readonly string[]>> = {
  'another site': ['Host: localhost', 'Origin: https://evil.example', 'Sec-Fetch-Site: cross-site'],
  'another site, in an old browser': ['Host: localhost', 'Origin: https://evil.example'],
  'another site, that asks for an image': ['Host: localhost', 'Sec-Fetch-Site: cross-site', 'Sec-Fetch-Dest: image'],
  'another site, that follows a link': ['Host: localhost', 'Sec-Fetch-Site: cross-site', 'Sec-Fetch-Mode: navigate'],
  'another port of this machine': ['Host: localhost', 'Origin: http://localhost:3000', 'Sec-Fetch-Site: same-site'],
  'another port, without an origin': ['Host: localhost', 'Sec-Fetch-Site: same-site'],
  'a sandbox': ['Host: localhost', 'Origin: null', 'Sec-Fetch-Site: cross-site'],
  'a name that resolves to this machine': [
    'Host: evil.example',
    'Origin: http://evil.example',
    'Sec-Fetch-Site: same-origin',
  ],
  'such a name, without an origin': ['Host: evil.example', 'Sec-Fetch-Site: same-origin'],
}
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']
const UPGRADE = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: a']
/** Own routes that hold no data, which all may read; the page itself says 401. */
const PUBLIC = ['/health', '/ready', '/metrics', '/governor', '/governor/page.js', '/governor/page.css']

async function statusOf(line: string, fields: readonly string[]): Promise<string> {
  const client = connect(governor.url)
  client.write(`${[`${line} HTTP/1.1`, ...fields, 'Content-Type: text/plain'].join('\r\n')}\r\n\r\n`)
  const head = (await client.until('\r\n\r\n')).toString('latin1')
  client.socket.destroy()
  return head.slice(9, 12)
}

describe.each(Object.entries(PAGES))('a page of %s', (_, fields) => {
  it("reaches none of Governor's own routes that hold data", async () => {
    const routes = [...governor.routes].map((route) => route.replace(':id', 'sa.0123456789abcdef').replace('*', 'x'))
    for (const route of routes) {
      if (PUBLIC.includes(route.split(' ')[1] ?? '') || route.startsWith('QUERY')) continue
      for (const more of [[], UPGRADE]) expect(await statusOf(route, [...fields, ...more]), route).toBe('401')
    }
  })

  it('reaches no upstream whose key Governor holds, by any method', async () => {
    for (const path of ['/v1/chat/completions', '/v1/models', '/v1/messages', '/named/v1/responses', '/named/x', '/']) {
      for (const method of METHODS) {
        expect(await statusOf(`${method} ${path}`, fields), `${method} ${path}`).toBe('403')
        expect(await statusOf(`${method} ${path}`, [...fields, ...UPGRADE]), `upgrade ${path}`).toBe('403')
      }
    }
    expect(upstream.requests).toEqual([])
  })
})
