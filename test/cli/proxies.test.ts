import { describe, expect, it } from 'vitest'
import { proxiesIn } from '../../src/cli/start/start.ts'
import { ConfigError } from '../../src/config/load.ts'

const http = 'http://proxy.example:3128'

describe('the proxy settings of the environment', () => {
  it.each([
    [{}, undefined],
    [{ HTTPS_PROXY: '', http_proxy: '' }, undefined],
    [{ HTTPS_PROXY: http }, { https: http }],
    [
      { HTTPS_PROXY: 'http://other:1', https_proxy: http, NO_PROXY: 'a,b' },
      { https: http, noProxy: 'a,b' },
    ],
    [{ HTTP_PROXY: 'proxy.example:3128' }, { http }],
    [
      { HTTP_PROXY: '127.0.0.1:3128', no_proxy: '*' },
      { http: 'http://127.0.0.1:3128', noProxy: '*' },
    ],
    [{ HTTPS_PROXY: 'http://me:secret@proxy.example' }, { https: 'http://me:secret@proxy.example' }],
    [{ HTTPS_PROXY: 'socks5://127.0.0.1:1080' }, { https: 'socks5://127.0.0.1:1080' }],
  ])('%j are read as %j', (env, proxies) => {
    expect(proxiesIn(env)).toEqual(proxies)
  })

  it.each(['my proxy', 'http://', 'ftp://me:secret@x', 'http://me:secret@x:port'])(
    'are rejected with an explanation that does not repeat the value, when the value is %j',
    (value) => {
      const refusal = () => proxiesIn({ HTTPS_PROXY: value })
      expect(refusal).toThrow(ConfigError)
      expect(refusal).toThrow(/^HTTPS_PROXY: not the URL of a proxy: expected one such as http:\/\/proxy/)
    },
  )
})
