/** The bytes that reach the upstream of a request that is not guarded. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { type Answering, closeRaw, connect, endToEnd, listenAnswering, openGovernor } from '../support/raw.ts'

let upstream: Answering
let governor: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenAnswering()
  governor = await openGovernor(upstream.url, {
    upstreams: {
      openai: { url: upstream.url },
      anthropic: { url: upstream.url },
      gemini: { url: upstream.url },
      named: { url: `${upstream.url}/api/v1` },
      deep: { url: `${upstream.url}/a%2Fb/c/` },
      keyed: { url: upstream.url, api_key: 'sk-own', headers: { 'X-Team': 'blue' } },
      claude: { url: upstream.url, api_key: 'sk-ant-api03-own' },
      subscribed: { url: upstream.url, api_key: 'sk-ant-oat01-own' },
      vertex: { url: upstream.url, api_key: 'ya29.own' },
    },
  })
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
  upstream.reply = 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'
})

/** Sends bytes and returns the one request that the upstream got. */
async function sent(bytes: string, isHead = false) {
  const client = connect(governor.url)
  client.write(bytes)
  const answer = await client.message(isHead)
  client.socket.destroy()
  expect(answer.line).toBe('HTTP/1.1 200 OK')
  expect(upstream.requests).toHaveLength(1)
  const [request] = upstream.requests
  if (!request) throw new Error('nothing arrived')
  return request
}

describe('the method of a request', () => {
  it.each([
    ...['GET', 'DELETE', 'OPTIONS', 'HEAD', 'TRACE', 'PUT', 'PATCH', 'POST', 'PROPFIND', 'PROPPATCH', 'REPORT'],
    ...['SEARCH', 'MKCOL', 'COPY', 'MOVE', 'LOCK', 'UNLOCK', 'PURGE', 'LINK', 'M-SEARCH', 'QUERY', 'SOURCE'],
  ])('%s arrives unchanged, with and without a body', async (method) => {
    const isHead = method === 'HEAD'
    const bare = await sent(`${method} /v1/things HTTP/1.1\r\nHost: a\r\nX-Bare: 1\r\n\r\n`, isHead)
    expect(bare.line).toBe(`${method} /v1/things HTTP/1.1`)
    expect(endToEnd(bare)).toEqual(['X-Bare: 1'])
    expect(bare.body).toHaveLength(0)
    upstream.requests.length = 0
    const full = await sent(
      `${method} /v1/things HTTP/1.1\r\nHost: a\r\nContent-Type: text/x\r\nContent-Length: 5\r\n\r\nh\xe9llo`,
      isHead,
    )
    expect(full.line).toBe(`${method} /v1/things HTTP/1.1`)
    expect(full.fields).toContain('content-length: 5')
    expect(endToEnd(full)).toEqual(['Content-Type: text/x'])
    expect(full.body.toString('latin1')).toBe('h\xe9llo')
  })

  it('with a body in chunks arrives with the same body', async () => {
    const request = await sent(
      'DELETE /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n2\r\n\xc3\xa9\r\n0\r\n\r\n',
    )
    expect(request.body.toString('latin1')).toBe('abc\xc3\xa9')
  })
})

describe('the target of a request', () => {
  it.each([
    ...['/', '/v1', '/v1/', '//', '//v1//models', '/v1/./models/../x', '/.', '/..', '/a;b=c;d', '/a%2Fb%2fc', '/%zz%'],
    ...['/?', '/v1/models?', '/v1/models??', '/?a=b&a=c&&=', '/x?url=http://h/p?q=1', '/x?a=[1]{2}|^`"<>\\', '/%u1234'],
    ...['/caf%C3%A9', '/caf%E9', '/a+b%20c?d+e%20f', "/~user/!$&'()*,=:@", '/v1/threads/t_1/messages', '/x?#'],
    ...['/v1beta/models/gemini-2.5-pro:generateContent?alt=sse', '/openaix/v1', '/Openai/v1/x', '/%6fpenai/x'],
    ...['/healthy', '/metricsx', '/readyz', '/governors'],
  ])('%s arrives byte for byte', async (target) => {
    const request = await sent(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`)
    expect(request.line).toBe(`GET ${target} HTTP/1.1`)
  })

  it('with raw bytes above ASCII, which HTTP does not allow, is rejected', async () => {
    const client = connect(governor.url)
    client.write('GET /caf\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n')
    expect((await client.message()).line).toBe('HTTP/1.1 400 Bad Request')
    expect(upstream.requests).toHaveLength(0)
  })

  it('can be 30,000 bytes long', async () => {
    const target = `/v1/search?q=${'x'.repeat(30_000)}`
    expect((await sent(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`)).line).toBe(`GET ${target} HTTP/1.1`)
  })

  it.each([
    ['http://api.example/v1/models?x=%20', '/v1/models?x=%20'],
    ['HTTP://user@api.example:81/v1//x', '/v1//x'],
    ['http://api.example', '/'],
    ['http://api.example?a=b', '/?a=b'],
    ['http://api.example/named/v1/x', '/api/v1/x'],
  ])('%s in absolute form becomes %s', async (target, path) => {
    const request = await sent(`GET ${target} HTTP/1.1\r\nHost: other\r\n\r\n`)
    expect(request.line).toBe(`GET ${path} HTTP/1.1`)
  })

  it.each([
    ['/named/v1/chat/x', '/api/v1/chat/x'],
    ['/named/chat/x', '/api/v1/chat/x'],
    ['/named/v1beta/x', '/api/v1/v1beta/x'],
    ['/named/v1?x', '/api/v1?x'],
    ['/named/v1', '/api/v1'],
    ['/named', '/api/v1/'],
    ['/named/', '/api/v1/'],
    ['/named?a=/b', '/api/v1/?a=/b'],
    ['/named//v1/x', '/api/v1//v1/x'],
    ['/named/named/x', '/api/v1/named/x'],
    ['/deep/v1/x%2F', '/a%2Fb/c/v1/x%2F'],
  ])('%s loses the name of its upstream and becomes %s', async (target, path) => {
    const request = await sent(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`)
    expect(request.line).toBe(`GET ${path} HTTP/1.1`)
  })
})

describe('dot segments in a target', () => {
  it.each([
    ...['/named/../x', '/named/v1/../x', '/named/..', '/named/a/../../x', '/named/./../x', '/named//../x'],
    ...['/named/%2e%2e/x', '/named/.%2E/x', '/named/%252e%252e/x', '/named/..%2fx', '/named/..%5Cx'],
    ...['/named/a%2f..%2f..%2fx', '/named/..\\x', '/named/a/..\\../x', '/named/a%2fb\\..\\../x', '/named/a%2fb/../..'],
    ...['http://a/named/../x', '/deep/../../x?y'],
  ])('such as %s are rejected when they would leave the path of the upstream', async (target) => {
    const client = connect(governor.url)
    client.write(`GET ${target} HTTP/1.1\r\nHost: a\r\nAnthropic-Version: 2023-06-01\r\n\r\n`)
    const answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 400 Bad Request')
    expect(JSON.parse(answer.body.toString())).toEqual({
      type: 'error',
      error: { type: 'invalid_request_error', message: expect.stringContaining("upstream's URL") },
    })
    expect(upstream.requests).toHaveLength(0)
  })

  it.each([
    ['/named/a/../x', '/api/v1/a/../x'],
    ['/named/a/b/../../x/.', '/api/v1/a/b/../../x/.'],
    ['/named/a%2F..%2Fx', '/api/v1/a%2F..%2Fx'],
    ['/named/...', '/api/v1/...'],
    ['/named/..a/b..', '/api/v1/..a/b..'],
    ['/named/%2e/x', '/api/v1/%2e/x'],
    ['/named/x?q=/../../y', '/api/v1/x?q=/../../y'],
    ['/../x', '/../x'],
  ])('such as %s stay inside the path and arrive unchanged', async (target, path) => {
    expect((await sent(`GET ${target} HTTP/1.1\r\nHost: a\r\n\r\n`)).line).toBe(`GET ${path} HTTP/1.1`)
  })
})

describe('the request headers', () => {
  it.each<[string, string[], string[]]>([
    [
      'keep case and order',
      ['X-b: 1', 'x-A: 2', 'X-B: 3', 'Accept: */*'],
      ['X-b: 1', 'x-A: 2', 'X-B: 3', 'Accept: */*'],
    ],
    [
      'keep duplicates apart',
      ['Cookie: a=1', 'Cookie: b=2', 'X: 1', 'x: 1'],
      ['Cookie: a=1', 'Cookie: b=2', 'X: 1', 'x: 1'],
    ],
    ['keep underscores', ['session_id: s_1', 'X_Y-Z: 1'], ['session_id: s_1', 'X_Y-Z: 1']],
    ['keep empty values', ['X-Empty:', 'X-After: 1'], ['X-Empty: ', 'X-After: 1']],
    ['keep Latin-1 and UTF-8 bytes', ['X-L: caf\xe9', 'X-U: caf\xc3\xa9'], ['X-L: caf\xe9', 'X-U: caf\xc3\xa9']],
    ['keep tabs and spaces inside', ['X-T: a \t b  c'], ['X-T: a \t b  c']],
    ['keep odd names', ["!#$%&'*+-.^_`|~0Z: 1"], ["!#$%&'*+-.^_`|~0Z: 1"]],
    [
      'keep names of object properties',
      ['__proto__: 1', 'constructor: 2', 'toString: 3'],
      ['__proto__: 1', 'constructor: 2', 'toString: 3'],
    ],
    [
      'keep credentials, cookies and beta flags',
      ['Authorization: Bearer sk-1', 'x-api-key: k', 'anthropic-beta: a,b'],
      ['Authorization: Bearer sk-1', 'x-api-key: k', 'anthropic-beta: a,b'],
    ],
    ['keep no user agent that was not sent', [], []],
    [
      'keep what says how the request came',
      ['Via: 1.1 x', 'Forwarded: for=1', 'X-Forwarded-For: 1.2.3.4'],
      ['Via: 1.1 x', 'Forwarded: for=1', 'X-Forwarded-For: 1.2.3.4'],
    ],
    ['keep trace context', ['traceparent: 00-a-b-01', 'baggage: k=v'], ['traceparent: 00-a-b-01', 'baggage: k=v']],
    [
      'keep the encodings asked for',
      ['Accept-Encoding: zstd, br;q=0.5, x-odd'],
      ['Accept-Encoding: zstd, br;q=0.5, x-odd'],
    ],
    [
      'keep conditions and ranges',
      ['If-None-Match: "a"', 'Range: bytes=0-1'],
      ['If-None-Match: "a"', 'Range: bytes=0-1'],
    ],
    ['keep the date of the client', ['Date: Mon, 01 Jan 2024 00:00:00 GMT'], ['Date: Mon, 01 Jan 2024 00:00:00 GMT']],
    [
      'lose those that Connection names',
      ['Connection: X-Gone, keep-alive , x-also', 'X-Gone: 1', 'X-ALSO: 2', 'X-Stays: 3'],
      ['X-Stays: 3'],
    ],
    ['lose those that a second Connection names', ['Connection: close', 'Connection: x-gone', 'X-Gone: 1'], []],
    [
      'lose Keep-Alive and Proxy- fields',
      [
        'Keep-Alive: timeout=5',
        'Proxy-Connection: keep-alive',
        'Proxy-Authorization: Basic x',
        'Proxy-Authenticate: Basic',
      ],
      [],
    ],
    ['keep other fields that begin with Proxy', ['Proxy-Hint: 1'], ['Proxy-Hint: 1']],
    ['keep of TE that trailers are welcome', ['TE: deflate, trailers;q=0.5', 'Connection: TE'], ['TE: trailers']],
    ['lose any other TE', ['TE: gzip'], []],
    ['keep Trailer', ['Trailer: X-Sum'], ['Trailer: X-Sum']],
    ['lose an Upgrade that Connection does not name', ['Upgrade: websocket'], []],
    [
      "lose Governor's own",
      ['X-Governor-Max-Iterations: 5', 'x-governor-session: s', 'X-GOVERNOR-ANY: 1', 'X-Governors: 1'],
      ['X-Governors: 1'],
    ],
    [
      'lose nothing when there are 300',
      Array.from({ length: 300 }, (_, at) => `X-${at}: ${at}`),
      Array.from({ length: 300 }, (_, at) => `X-${at}: ${at}`),
    ],
    ['keep one of 30,000 bytes', [`X-Big: ${'y'.repeat(30_000)}`], [`X-Big: ${'y'.repeat(30_000)}`]],
  ])('%s', async (_, given, kept) => {
    const request = await sent(`GET /v1/x HTTP/1.1\r\nHost: a\r\n${given.map((field) => `${field}\r\n`).join('')}\r\n`)
    expect(endToEnd(request)).toEqual(kept)
  })

  it('name the upstream as host, exactly once', async () => {
    const request = await sent('GET /v1/x HTTP/1.1\r\nHost: governor.internal:8787\r\nX: 1\r\n\r\n')
    expect(request.fields.filter((field) => /^host:/i.test(field))).toEqual([`host: 127.0.0.1:${upstream.port}`])
  })

  it('contain the key and the fields that are configured for the upstream', async () => {
    const request = await sent(
      'GET /keyed/x HTTP/1.1\r\nHost: localhost\r\nX-API-Key: mine\r\nx-team: red\r\nX: 1\r\n\r\n',
    )
    expect(endToEnd(request)).toEqual(['X: 1', 'x-api-key: sk-own', 'X-Team: blue'])
  })

  it.each([
    ['/claude/v1/messages', 'Authorization: Bearer mine', 'x-api-key: sk-ant-api03-own'],
    ['/claude/v1/messages', 'X-API-Key: mine', 'x-api-key: sk-ant-api03-own'],
    ['/claude/v1/chat/completions', 'Authorization: Bearer mine', 'authorization: Bearer sk-ant-api03-own'],
    ['/subscribed/v1/messages', 'X-API-Key: mine', 'authorization: Bearer sk-ant-oat01-own'],
    ['/vertex/v1/messages', 'X: 1', 'authorization: Bearer ya29.own'],
    ['/keyed/v1/messages', 'Authorization: Bearer mine', 'authorization: Bearer sk-own'],
  ])('to %s with “%s” contain “%s” when Governor takes the key from there', async (path, given, held) => {
    const request = await sent(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n${given}\r\n\r\n`)
    expect(endToEnd(request).filter((field) => /^(authorization|x-api-key):/i.test(field))).toEqual([held])
  })

  it('of an HTTP/1.0 client without Host arrive as well', async () => {
    const client = connect(governor.url)
    client.write('POST /v1/x HTTP/1.0\r\nX-Old: 1\r\nContent-Length: 2\r\n\r\nok')
    const answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 200 OK')
    expect(await client.closed.then(() => upstream.requests.map(endToEnd))).toEqual([['X-Old: 1']])
    expect(upstream.requests[0]?.body.toString()).toBe('ok')
  })
})

it('OPTIONS * is answered by Governor itself', async () => {
  const client = connect(governor.url)
  client.write('OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n')
  expect((await client.message()).line).toBe('HTTP/1.1 204 No Content')
  expect(upstream.requests).toHaveLength(0)
})

it('sequential requests of one client share one connection on either side', async () => {
  const client = connect(governor.url)
  const before = upstream.count
  const headOf = (at: number) => `POST /v1/x${at} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n${at}`
  for (const at of [1, 2, 3]) {
    client.write(headOf(at))
    expect((await client.message()).line).toBe('HTTP/1.1 200 OK')
  }
  expect(upstream.requests.map((request) => request.body.toString())).toEqual(['1', '2', '3'])
  expect(upstream.count - before).toBeLessThanOrEqual(1)
})

it('pipelined requests are answered in their order', async () => {
  const client = connect(governor.url)
  client.write(`${'GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n'.repeat(3)}`)
  for (const _ of [1, 2, 3]) expect((await client.message()).line).toBe('HTTP/1.1 200 OK')
  expect(upstream.requests).toHaveLength(3)
})
