import { describe, expect, it } from 'vitest'
import { requestHeaders, responseHeaders } from '../../src/http/headers.ts'
import { withEdits } from '../../src/proxy/request-edits.ts'

describe('fields that the Connection field names', () => {
  it.each([
    { connection: ['close, X-Foo'] },
    { connection: ['keep-alive', 'x-foo'] },
    { connection: ['X-FOO , keep-alive', 'keep-alive'] },
  ])('are dropped: $connection', ({ connection }) => {
    const named = connection.flatMap((value) => ['Connection', value])
    const fields = ['a', '1', ...named, 'X-Foo', '2', 'constructor', '3', '__proto__', '4', 'TE', 'gzip, trailers']
    const through = ['a', '1', 'constructor', '3', '__proto__', '4']
    expect(requestHeaders(fields)).toEqual([...through, 'TE', 'trailers'])
    expect(responseHeaders(fields)).toEqual(through)
    const harmless = fields.map((value) => (connection.includes(value) ? 'keep-alive' : value))
    expect(responseHeaders(harmless)).toEqual(['a', '1', 'X-Foo', '2', ...through.slice(2)])
  })
})

it('an edited request has no field that describes its body as it was', () => {
  const digests = ['Content-Digest', 'sha-256=:YQ==:', 'Content-MD5', 'YQ==', 'Digest', 'md5=YQ==']
  const headers = ['A', '1', 'Content-Length', '2', ...digests, 'Content-Encoding', 'gzip']
  const upstream = {
    name: 'u',
    origin: 'http://u',
    prefix: '',
    apiKey: undefined,
    headers: {},
    holdsKey: false,
    keepsName: false,
  }
  const call = { upstream, method: 'POST', path: '/', headers, body: Buffer.from('{}') }
  expect(withEdits(call, Buffer.from('{}'), []).headers).toEqual(['A', '1'])
})
