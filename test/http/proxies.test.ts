/** Upstreams that are reached through a proxy. */
import { once } from 'node:events'
import http from 'node:http'
import net, { type AddressInfo } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { callModel, START } from '../support/agent.ts'
import { startGovernor } from '../support/governor.ts'
import { serve, startProvider } from '../support/provider.ts'

/** A proxy that answers each CONNECT with a status and, if that is 200, with a tunnel to `target`. */
async function startProxy(target: string, status: number) {
  const asked: string[] = []
  const { hostname, port } = new URL(target)
  const proxy = http.createServer()
  proxy.on('connect', (request, client) => {
    asked.push(String(request.url))
    client.on('error', () => client.destroy())
    if (status !== 200) return client.end(`HTTP/1.1 ${status} No\r\nContent-Length: 0\r\n\r\n`)
    const upstream = net.connect(Number(port), hostname, () => {
      client.write('HTTP/1.1 200 OK\r\n\r\n')
      client.pipe(upstream).pipe(client)
    })
    client.on('close', () => upstream.destroy())
    upstream.on('error', () => client.destroy())
  })
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  onTestFinished(() => {
    proxy.close()
  })
  return { url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, asked }
}

async function startBehind(status: number, noProxy?: string) {
  const provider = await startProvider(() => ({ body: { data: [] } }))
  onTestFinished(() => provider.close())
  const proxy = await startProxy(provider.url, status)
  const proxies = { http: proxy.url, https: undefined, noProxy }
  const { url } = await startGovernor('http://provider.invalid', {}, { proxies })
  return { url, provider, proxy }
}

describe('a forward proxy on the way to the upstream', () => {
  it('gets both values of a field that occurs twice', async () => {
    const { url, provider, proxy } = await startBehind(200)
    const headers: [string, string][] = [
      ['Host', 'governor'],
      ['Anthropic-Beta', 'one'],
      ['X-Once', 'a'],
      ['Anthropic-Beta', 'two'],
    ]
    const request = http.request(`${url}/v1/models`, { method: 'POST', headers: headers.flat() })
    request.end()
    const [response] = await once(request, 'response')
    response.resume()
    expect(response.statusCode).toBe(200)
    expect(proxy.asked).toEqual(['provider.invalid:80'])
    expect(provider.requests[0]?.header('anthropic-beta')).toBe('one, two')
    expect(provider.requests[0]?.header('x-once')).toBe('a')
  })

  it('works with an upstream that sends 100 Continue without being asked', async () => {
    const upstream = await serve((request, response) => {
      request.resume()
      response.writeContinue()
      response.end('ok')
    })
    onTestFinished(() => upstream.close())
    const proxy = await startProxy(upstream.url, 200)
    const proxies = { http: proxy.url, https: undefined, noProxy: undefined }
    const { url } = await startGovernor('http://provider.invalid', {}, { proxies })
    for (let turn = 0; turn < 2; turn++) {
      const response = await fetch(`${url}/v1/files`, { method: 'POST', body: 'x' })
      expect(await response.text()).toBe('ok')
    }
    expect(proxy.asked).toHaveLength(1)
  })

  it('is named in the error if it refuses the connection', async () => {
    const { url } = await startBehind(407)
    const response = await fetch(`${url}/v1/models`)
    expect(response.status).toBe(502)
    expect(JSON.stringify(await response.json())).toContain(
      'the proxy on the way refused (407). Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.',
    )
  })

  it.each([
    ['http://127.0.0.1:1', /the proxy on the way can't be reached \(connection refused\)\. Check HTTPS_PROXY/],
    ['http://proxy.invalid:80', /the proxy on the way can't be reached \(the host name does not resolve/],
  ])('is named in the error if nothing listens at %s', async (http, words) => {
    const proxies = { http, https: undefined, noProxy: undefined }
    const { url } = await startGovernor('http://provider.invalid', {}, { proxies })
    const response = await fetch(`${url}/v1/models`)
    expect(response.status).toBe(502)
    expect(JSON.stringify(await response.json())).toMatch(words)
  })

  it.each(['*', 'example.com, *'])('is not used if NO_PROXY is %j', async (noProxy) => {
    const { url, proxy } = await startBehind(200, noProxy)
    expect((await callModel(url, START)).status).toBe(502)
    expect(proxy.asked).toEqual([])
  })
})
