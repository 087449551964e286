import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { ConfigError, checkConfig, type Environment, loadConfig } from '../../src/config/load.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-config-'))
const FILE = join(folder, 'governor.yaml')
afterAll(() => rmSync(folder, { recursive: true }))

type Flags = Parameters<typeof loadConfig>[0]

function load(yaml: string, env: Environment = {}, flags: Flags = {}) {
  writeFileSync(FILE, yaml)
  return loadConfig({ config: FILE, ...flags }, env).config
}

/** Returns the message with which a configuration is rejected; the path of the file in it is replaced by FILE. */
function refusal(run: () => unknown): string {
  try {
    run()
  } catch (error) {
    expect(error).toBeInstanceOf(ConfigError)
    return (error as Error).message.replaceAll(FILE, 'FILE')
  }
  throw new Error('was not refused')
}

describe('a wrong configuration', () => {
  it.each([
    ['budget: {max_iteration: 5}', 'budget.max_iteration: unknown key: expected one of enabled, max_iterations,'],
    ['server: {access_keys: [""]}', 'server.access_keys.0: found "": expected a text that is not empty'],
    [
      'overflow: {quirks: [{id: q, status: [], means: compress_only}]}',
      'overflow.quirks.0.status: found a list: expected a list that is not empty',
    ],
    ...[
      'x',
      'short',
      'two words',
      ' padded-token',
      'a-token-with-a-line-end\\n',
      'a-token\\nof-lines',
      'schlüssel',
    ].map((token) => [
      `ops: {admin_token: "${token}"}`,
      'ops.admin_token: found a text: expected a token of at least 6 letters, digits and signs',
    ]),
    ['budget: {max_iterations: .inf}', 'budget.max_iterations: found Infinity: expected a number'],
    ['budget: {}\n---\nbudget: {}', 'not valid YAML: a second document begins at line 2'],
    ...['Authorization', 'x-api-key', 'x-goog-api-key', 'Cookie'].map((name) => [
      `sessions: {headers: [x-session-id, ${name}]}`,
      'sessions.headers.1: found a text: holds a key, which is never logged: expected another header',
    ]),
    ['nope: 1', 'nope: unknown key: expected one of server, upstreams,'],
    ['upstreams: {x: {url: http://x, uri: 1}}', 'upstreams.x.uri: unknown key: expected one of url, api_key, headers'],
    [
      "overflow: {quirks: [{id: q, text: '(a)\\1', means: compress_only}]}",
      'overflow.quirks.0.text: found "(a)\\\\1": not a pattern in RE2\'s syntax:',
    ],
    [
      'overflow: {quirks: [{id: q, status: 400, means: shrink}]}',
      'overflow.quirks.0.means: found "shrink": expected one of shrink_context',
    ],
    [
      "overflow: {quirks: [{id: q, text: '(?=a)', means: compress_only}]}",
      'overflow.quirks.0.text: found "(?=a)": not a pattern in RE2\'s syntax:',
    ],
    [
      'overflow: {quirks: [{id: q, means: compress_only}]}',
      'overflow.quirks.0: found keys and values: matches everything',
    ],
    [
      'overflow: {quirks: [{id: q, status: 400}]}',
      'overflow.quirks.0.means: found nothing: expected one of shrink_context',
    ],
    [
      'overflow: {quirks: [{id: q, status: [4], means: compress_only}]}',
      'overflow.quirks.0.status.0: found 4: expected at least 200',
    ],
    [
      'overflow: {quirks: [{id: q, txt: a, means: compress_only}]}',
      'overflow.quirks.0.txt: unknown key: expected one of id, source, status, code, text, unless, means',
    ],
    ['budget: {run: {max_token: 1}}', 'budget.run.max_token: unknown key: expected one of max_tool_calls'],
    ['budget: {max_iterations: "5"}', 'budget.max_iterations: found "5": expected a number'],
    ['budget: {max_iterations: 5.5}', 'budget.max_iterations: found 5.5: expected a whole number'],
    ['budget: {max_iterations: -1}', 'budget.max_iterations: found -1: expected at least 0'],
    ['budget: {caution_threshold: 1.5}', 'budget.caution_threshold: found 1.5: expected at most 1'],
    [
      'budget: {caution_threshold: 0.95}',
      'budget.caution_threshold: found 0.95: 0.95 is above warning_threshold, 0.9: expected at most',
    ],
    [
      'budget: {warning_threshold: 0.6}',
      'budget.caution_threshold: found nothing: 0.7 is above warning_threshold, 0.6: expected at most',
    ],
    ['budget: {enabled: "yes"}', 'budget.enabled: found "yes": expected true or false'],
    ['budget: {channel: email}', 'budget.channel: found "email": expected one of auto, tool_result, system, user'],
    [
      'budget: {client_override: maybe}',
      'budget.client_override: found "maybe": expected one of true, false, lower_only',
    ],
    ['budget: 5', 'budget: found 5: expected keys and values: enabled, max_iterations, '],
    [
      'upstreams: {openai: "https://llm.example"}',
      'upstreams.openai: found a text: expected keys and values: url, api_key, headers, strip_name (line 1)',
    ],
    ['overrides: {model: x}', 'overrides: found keys and values: expected a list (line 1)'],
    ['budget: {day: 5}', 'budget.day: found 5: expected limits such as {max_cost_usd: 20}, or a list of them'],
    ['server: {access_keys: [5]}', 'server.access_keys.0: found a number: expected a text, or keys and values'],
    [
      'budget: {texts: {caution: "{nope} of {max}"}}',
      'budget.texts.caution: found "{nope} of {max}": unknown placeholder {nope}: expected {meter},',
    ],
    ['server: {port: 70000}', 'server.port: found 70000: expected at most 65535'],
    ['server: {drain_timeout: 30}', 'server.drain_timeout: found 30: expected a length of time such as 500ms, 30s,'],
    ['server: {drain_timeout: 30 parsecs}', 'server.drain_timeout: found "30 parsecs": expected a length of time'],
    ['server: {max_guarded_body: big}', 'server.max_guarded_body: found "big": expected a size such as 512kb,'],
    ['upstreams: {x: {}}', 'upstreams.x.url: found nothing: expected an http:// or https:// URL'],
    ['upstreams: {x: {url: "ftp://x"}}', 'upstreams.x.url: found "ftp://x": expected an http:// or https:// URL'],
    [
      'upstreams: {x: {url: "https://me:secret@x/v1"}}',
      'upstreams.x.url: found "https://…@x/v1": expected a URL without user name and password',
    ],
    [
      'upstreams: {x: {url: "https://x/v1?key=secret"}}',
      'upstreams.x.url: found "https://x/v1?…": expected a URL without a query',
    ],
    [
      'upstreams: {x: {url: "https://x/v1/chat/completions/"}}',
      'upstreams.x.url: found "https://x/v1/chat/completions/": expected the base URL of the API',
    ],
    [
      'upstreams: {openai: {url: "http://localhost:8787/v1"}}',
      'upstreams.openai.url: found "http://localhost:8787/v1": is the address on which Governor listens: expected',
    ],
    [
      'server: {host: 0.0.0.0, port: 80}\nupstreams: {x: {url: "http://[::1]"}}',
      'upstreams.x.url: found "http://[::1]": is the address on which Governor listens: expected the address of',
    ],
    [
      'upstreams: {x: {url: "http://0.0.0.0:8787"}}',
      'upstreams.x.url: found "http://0.0.0.0:8787": is the address on which Governor listens',
    ],
    [
      'server: {host: Box.local, port: 9000}\nupstreams: {x: {url: "http://box.local:9000"}}',
      'upstreams.x.url: found "http://box.local:9000": is the address on which Governor listens',
    ],
    [
      'upstreams: {x: {url: "http://x", headers: {Content-Length: "5"}}}',
      'upstreams.x.headers.Content-Length: set by Governor for each request: expected another header',
    ],
    [
      'upstreams: {health: {url: "http://x"}}',
      "upstreams.health: reserved for Governor's own paths: expected a name other than health,",
    ],
    ['upstreams: {v1: {url: "http://x"}}', 'upstreams.v1: looks like an API version: expected another name'],
    ['upstreams: {"a/b": {url: "http://x"}}', 'upstreams.a/b: expected a name of letters, digits, - and _'],
    ['loop_guard: {mode: block}', 'loop_guard.mode: found "block": expected one of observe, warn, enforce'],
    ...['off', 'false'].map((off) => [
      `loop_guard: {mode: ${off}}`,
      `loop_guard.mode: found ${off === 'off' ? '"off"' : off}: expected one of observe, warn, enforce; enabled: false ` +
        'switches it off',
    ]),
    ['loop_guard: {standstill: 1}', 'loop_guard.standstill: found 1: expected at least 2'],
    ['loop_guard: {exempt_tools: process}', 'loop_guard.exempt_tools: found "process": expected a list'],
    [
      'loop_guard: {threshold: 3}',
      'loop_guard.threshold: unknown key: expected one of enabled, mode, repetition_threshold,',
    ],
    ['store: disk', 'store: found "disk": expected one of memory, redis'],
    ['log: {level: loud}', 'log.level: found "loud": expected one of trace, debug, info, warn,'],
    ['sessions: {max: 0}', 'sessions.max: found 0: expected at least 1'],
    ['sessions: {scaffolding: {tag: []}}', 'sessions.scaffolding.tag: unknown key: expected one of tags, prefixes,'],
    [
      'sessions: {scaffolding: {prefixes: [3]}}',
      'sessions.scaffolding.prefixes.0: found 3: expected a text, or text and end',
    ],
  ])('such as %s is rejected with the path, what was found and what was expected', (yaml, message) => {
    expect(refusal(() => load(yaml))).toContain(`FILE: ${message}`)
  })

  it('is rejected when it has more than 1,000 quirks', () => {
    const quirks = '{id: q, status: 400, means: compress_only},'.repeat(1_001)
    const yaml = `overflow: {quirks: [${quirks}]}`
    expect(refusal(() => load(yaml))).toContain('FILE: overflow.quirks: found a list: expected')
  })

  it('is rejected with one line for each mistake', () => {
    const message = refusal(() => load('budget: {max_iterations: -1, adaptive: 7}\nserver: {prot: 1}'))
    expect(message.split('\n').map((line) => line.split(': ')[1])).toEqual(
      expect.arrayContaining(['budget.max_iterations', 'budget.adaptive', 'server.prot']),
    )
    expect(message.split('\n')).toHaveLength(3)
  })

  it('is rejected with the line of each wrong value, or of the section that lacks a value', () => {
    const file = [
      'upstreams:',
      '  x:',
      '    headers: {}',
      'budget:',
      '  # how many',
      '  max_iterations: ten',
      'overrides:',
      '  - {model: a, budget: {adaptive: 1}}',
      '  - model: b',
      '    budget: {run: {max_token: 1}}',
      'server: {port: 1}',
    ]
    const refused = refusal(() => load(file.join('\n'), { PORT: 'x' }))
    const lines = refused.split('\n').map((line) => /^(\S+): .*?(?: \(line (\d+)\))?$/.exec(line))
    expect(lines.map((found) => [found?.[1], found?.[2]])).toEqual([
      ['PORT', undefined],
      ['FILE', '2'],
      ['FILE', '6'],
      ['FILE', '8'],
      ['FILE', '10'],
    ])
  })

  it.each([
    ['budget: [', 'FILE: not valid YAML: '],
    ['a: 1\na: 2', 'at line 2'],
    ['- 1', 'FILE: found a list: expected keys and values'],
    ['hello', 'FILE: found "hello": expected keys and values'],
  ])('such as %j is rejected with the reason', (yaml, message) => {
    expect(refusal(() => load(yaml))).toContain(message)
  })

  it.each([
    'budget: {}\nupstreams: {__proto__: {url: "http://x"}}',
    'upstreams:\n  x: {url: "http://x", headers: {"__proto__": hush}}',
    '\n__proto__: {}',
  ])('with a __proto__ key is rejected with the line of the key: %j', (yaml) => {
    expect(refusal(() => load(yaml))).toBe('FILE, line 2: no key may be named __proto__: choose another name')
  })

  it('is rejected when its file is not encoded in UTF-8', () => {
    writeFileSync(FILE, Buffer.from('stop: {text: Résumé}', 'latin1'))
    expect(() => loadConfig({ config: FILE }, {})).toThrow('is not in UTF-8: save it in that encoding')
  })

  it('is rejected with the path and the reason when its file does not exist', () => {
    const missing = join(folder, 'none.yaml')
    const why = "can't be read (no such file): check the path given with --config or GOVERNOR_CONFIG"
    expect(refusal(() => loadConfig({ config: missing }, {}))).toBe(`${missing}: ${why}`)
    expect(refusal(() => loadConfig({}, { GOVERNOR_CONFIG: missing }))).toBe(`${missing}: ${why}`)
    expect(refusal(() => loadConfig({ config: folder }, {}))).toContain(`${folder}: can't be read (a folder)`)
  })
})

describe('a limit on tokens', () => {
  it.each([
    ['2000000', 2_000_000],
    ['2M', 2_000_000],
    ['1.5k', 1_500],
    ['" 250 K "', 250_000],
  ])('can be written as %s', (written, tokens) => {
    expect(load(`budget: {run: {max_tokens: ${written}}}`).budget.run.max_tokens).toBe(tokens)
    const { budget, overrides } = load(
      `budget: {session: {max_tokens: ${written}}}\noverrides: [{budget: {run: {max_tokens: ${written}}}}]`,
    )
    expect(budget.session.max_tokens).toBe(tokens)
    expect(overrides).toMatchObject([{ budget: { run: { max_tokens: tokens } } }])
  })

  it('can be written with a unit in a variable', () => {
    expect(load(`budget: {run: {max_tokens: "\${MOST}"}}`, { MOST: '2M' }).budget.run.max_tokens).toBe(2_000_000)
  })

  it.each(['5.5', 'lots', '2MB', '99999999999M'])(
    'is rejected with its value and the expected form when it is %s',
    (written) => {
      const shown = /^[\d.]+$/.test(written) ? written : `"${written}"`
      expect(refusal(() => load(`budget: {run: {max_tokens: ${written}}}`))).toBe(
        `FILE: budget.run.max_tokens: found ${shown}: expected a whole number of 0 or more, such as 2000000, 250k or 2M (line 1)`,
      )
    },
  )
})

describe('a built-in upstream', () => {
  it('keeps its URL when the file sets only another of its keys', () => {
    const { upstreams } = load('upstreams: {openai: {api_key: sk-1}}')
    expect(upstreams['openai']).toMatchObject({ url: 'https://api.openai.com', api_key: 'sk-1' })
  })

  it('keeps its URL when all of its keys are in comments, as no other upstream does', () => {
    expect(load('upstreams:\n  openai:\n    # api_key: sk-1').upstreams['openai']?.url).toBe('https://api.openai.com')
    expect(refusal(() => load('upstreams:\n  x:\n    # api_key: sk-1'))).toContain('upstreams.x.url: found nothing')
  })

  it('needs no URL in an editor that checks the file with the schema', () => {
    const schema = JSON.parse(readFileSync('config/schema.json', 'utf8'))
    expect(schema.properties.upstreams.additionalProperties).not.toHaveProperty('required')
  })
})

describe('a value that would fail only later', () => {
  it.each([
    ['upstreams: {openai: {api_key: "sk-x\\n"}}', 'upstreams.openai.api_key: found a text: expected a key without'],
    [
      'upstreams: {openai: {headers: {x-a: "☃"}}}',
      'upstreams.openai.headers.x-a: found a text: expected a header value',
    ],
    ['sessions: {max_bytes: 0b}', 'sessions.max_bytes: found "0b": expected at least 1kb'],
    ['sessions: {max: 10000000000}', 'sessions.max: found 10000000000: expected at most'],
    ['server: {drain_timeout: 60d}', 'server.drain_timeout: found "60d": too much'],
  ])('is rejected at start: %s', (yaml, message) => {
    expect(refusal(() => load(yaml))).toContain(message)
  })
})

describe('an upstream on this machine', () => {
  it.each([
    'upstreams: {x: {url: "http://127.0.0.1:8788"}}',
    'upstreams: {x: {url: "https://localhost:8787"}}',
    'upstreams: {x: {url: "http://127.0.0.2:8787"}}',
    'upstreams: {x: {url: "http://[::1]:8787"}}',
    'server: {host: 10.0.0.5}\nupstreams: {x: {url: "http://127.0.0.1:8787"}}',
    'server: {host: 0.0.0.0}\nupstreams: {x: {url: "http://10.0.0.5:8787"}}',
    'server: {port: 0}\nupstreams: {x: {url: "http://127.0.0.1:8787"}}',
  ])('may have any address that is not certainly Governor’s own: %s', (yaml) => {
    expect(load(yaml).upstreams['x']).toBeDefined()
  })
})

describe('a secret', () => {
  it.each([
    'server: {access_keys: hush-hush}',
    'server: {access_keys: [hush-hush, 5]}',
    'server: {access_keys: [[hush-hush]]}',
    'upstreams: {x: {url: "http://x", api_key: [hush-hush]}}',
    'upstreams: {x: {url: "http://x", key: hush-hush}}',
    'upstreams: {x: {url: "http://x", headers: hush-hush}}',
    'upstreams: {x: {url: "http://x", headers: {a: [hush-hush]}}}',
    'upstreams: {x: {url: "http://x", headers: {"a b": hush-hush}}}',
    'api_key: hush-hush',
    'server:\n  access_keys: ["hush-hush',
    `server: {access_keys: ["\${SECRET}", 5], prot: "\${SECRET}"}`,
  ])('never appears in the error message about %j', (yaml) => {
    const message = refusal(() => load(yaml, { SECRET: 'hush-hush' }))
    expect(message).not.toContain('hush')
    expect(message).toContain('FILE')
  })
})

describe('variables in a file', () => {
  it('are replaced in values, with a default if they are unset or empty', () => {
    const yaml = `
server: {host: "\${HOST_A}", port: 1}
upstreams:
  a: {url: "http://\${NAME:-fallback}:\${PORT_A}/v1", api_key: "\${KEY}"}
  b: {url: "\${EMPTY:-http://b}", headers: {x: "$\${KEY}", y: "\${NONE:-}"}}`
    const { server, upstreams } = load(yaml, { HOST_A: '0.0.0.0', PORT_A: '80', KEY: 'k: "1"', EMPTY: '' })
    expect(server.host).toBe('0.0.0.0')
    expect(upstreams['a']).toMatchObject({ url: 'http://fallback:80/v1', api_key: 'k: "1"', headers: {} })
    // biome-ignore lint/suspicious/noTemplateCurlyInString: this is the expected value
    expect(upstreams['b']).toMatchObject({ url: 'http://b', headers: { x: '${KEY}', y: '' } })
  })

  it('need no quotes between the braces and brackets of YAML', () => {
    const yaml = `
server: {port: \${P}, access_keys: [\${K}, \${UNSET:-other}]}
upstreams: {x: {api_key: \${K}, url: http://\${NAME:-fallback}/v1, headers: {a: $\${K}, b: "\${K}"}}}`
    const { server, upstreams } = load(yaml, { P: '9000', K: 'sk, {1}' })
    expect(server).toMatchObject({ port: 9000, access_keys: ['sk, {1}', 'other'] })
    expect(upstreams['x']).toMatchObject({
      url: 'http://fallback/v1',
      api_key: 'sk, {1}',
      // biome-ignore lint/suspicious/noTemplateCurlyInString: this is the expected value
      headers: { a: '${K}', b: 'sk, {1}' },
    })
  })

  it('are not replaced in keys, not even between braces', () => {
    expect(refusal(() => load(`upstreams: {\${K}: {url: "http://x"}}`, { K: 'x' }))).toBe(
      // biome-ignore lint/suspicious/noTemplateCurlyInString: as the file contains it
      'FILE: upstreams.${K}: expected a name of letters, digits, - and _ (line 1)',
    )
  })

  it('keep the type that their value would have without quotes', () => {
    const yaml = `server:\n  port: \${P}\nbudget:\n  enabled: \${E:-false}\n  max_iterations: \${M:-7}`
    const { server, budget } = load(yaml, { P: '9000' })
    expect([server.port, budget.enabled, budget.max_iterations]).toEqual([9000, false, 7])
  })

  it('are converted to the expected type where possible, quoted or not', () => {
    const yaml = `
server: {port: "\${P}", access_keys: ["\${K}"]}
upstreams:
  openai:
    api_key: \${K}
    headers:
      x-n: \${K}
budget: {max_iterations: "\${M:-7}", client_override: "\${C:-false}", adaptive: "\${A}"}`
    const { server, upstreams, budget } = load(yaml, { P: '9000', K: '12345', A: 'false' })
    expect(server).toMatchObject({ port: 9000, access_keys: ['12345'] })
    expect(upstreams['openai']).toMatchObject({ api_key: '12345', headers: { 'x-n': '12345' } })
    expect(budget).toMatchObject({ max_iterations: 7, client_override: false, adaptive: false })
  })

  it('are shown in an error as the number that they hold, quoted or not', () => {
    for (const written of [`"\${P}"`, `\${P}`]) {
      const load90000 = () => load(`server:\n  port: ${written}`, { P: '90000' })
      expect(refusal(load90000)).toContain('found 90000: expected at most 65535')
    }
    expect(refusal(() => load('server: {port: "9000"}'))).toContain('found "9000": expected a number')
  })

  it('cause an error with their line and a remedy when they are not set', () => {
    const message = refusal(() => load(`server:\n  host: \${NOT_SET}`))
    expect(message).toMatch(/^FILE, line 2: the environment variable NOT_SET is not set: /)
  })
})

describe('a configuration', () => {
  it('has every default when it is empty', () => {
    const { server, budget, upstreams, sessions, stop } = load('# nothing\n')
    expect(server).toMatchObject({
      host: '127.0.0.1',
      port: 8787,
      drain_timeout: 30_000,
      websocket: 'guard',
    })
    expect(budget).toMatchObject({
      enabled: true,
      max_iterations: 300,
      caution_threshold: 0.7,
      warning_threshold: 0.9,
      adaptive: true,
      channel: 'auto',
      announce: 'auto',
      client_override: true,
      run: { max_tool_calls: 0 },
    })
    expect(Object.keys(upstreams)).toEqual(['openai', 'anthropic', 'gemini'])
    expect(sessions).toMatchObject({ max: 10_000, ttl: 3_600_000 })
    expect(stop.text).toContain("You've reached the maximum number of tool-calling iterations allowed.")
    expect(checkConfig({}, 'nothing')).toEqual(load('{}'))
  })

  it('takes a value from the flag before the environment, the file and the default', () => {
    const yaml =
      'server: {port: 1, host: file}\nlog: {level: warn}\nupstreams: {openai: {url: "http://file", api_key: k}}'
    const env = { PORT: '2', HOST: 'env', LOG_LEVEL: 'error', OPENAI_UPSTREAM_URL: 'http://env' }
    const outcome = (from: Environment, flags: Flags) => {
      const { server, log, upstreams } = load(yaml, from, flags)
      return [server.port, server.host, log.level, upstreams['openai']?.url]
    }
    expect(outcome({}, {})).toEqual([1, 'file', 'warn', 'http://file'])
    expect(outcome({ PORT: '', HOST: '' }, {})).toEqual([1, 'file', 'warn', 'http://file'])
    expect(outcome(env, {})).toEqual([2, 'env', 'error', 'http://env'])
    const flags = { port: '3', host: 'flag', 'log-level': 'debug', upstream: ['openai=http://flag'] }
    expect(outcome(env, flags)).toEqual([3, 'flag', 'debug', 'http://flag'])
    expect(load(yaml, env, flags).upstreams['openai']?.api_key).toBe('k')
  })

  it('selects Redis by the file or by REDIS_URL, and prefers the address in REDIS_URL', () => {
    const outcome = (yaml: string, env: Environment = {}) => {
      const { store, redis } = load(yaml, env)
      return [store, redis.url, redis.timeout]
    }
    expect(outcome('')).toEqual(['memory', 'redis://127.0.0.1:6379', 50])
    expect(outcome('store: redis')).toEqual(['redis', 'redis://127.0.0.1:6379', 50])
    const yaml = 'store: memory\nredis: {url: "redis://file:1", timeout: 1s}'
    expect(outcome(yaml, { REDIS_URL: '' })).toEqual(['memory', 'redis://file:1', 1_000])
    expect(outcome(yaml, { REDIS_URL: 'rediss://env:2/3' })).toEqual(['redis', 'rediss://env:2/3', 1_000])
  })

  it('never shows a password of Redis in an error message', () => {
    const message = refusal(() => load('', { REDIS_URL: 'http://user:secret@host' }))
    expect(message).toContain('redis.url: found "http://…@host": expected a redis:// or rediss:// URL')
    const other = refusal(() => load('redis: {password: [secret], timeout: 1ms, prefix: "{a}"}'))
    expect(other).not.toContain('secret')
    expect(other).toContain('redis.timeout: found "1ms": expected at least 5ms')
    expect(other).toContain('redis.prefix: found "{a}": expected a text without braces and white space')
  })

  it.each([
    'redis://user:se/cret@host:1',
    'redis://user:s@e/cret@host:x',
    'redis://user:se?cret@host:1',
    'user:secret@host:1',
    'redis://:se%cret@host:1',
  ])('never shows a password that makes the address of Redis wrong, and says how to write it: %s', (address) => {
    const message = refusal(() => load('', { REDIS_URL: address }))
    expect(message).not.toMatch(/cret|se[/?]/)
    expect(message).toMatch(/found "(?:redis:\/\/)?…@host:.": expected .*in a password, .*%25/)
  })

  it.each(['redis://:secret', 'redis://user:secret', 'redis://user:1secret/0', 'redis://:1"secret'])(
    'never shows what may be a password where the address of Redis lacks its host: %s',
    (address) => {
      const message = refusal(() => load('', { REDIS_URL: address }))
      expect(message).toMatch(/found "redis:\/\/(?:user)?:…": expected a redis:\/\//)
      expect(message).not.toContain('secret')
    },
  )

  it('shows the port in the address of Redis that is wrong', () => {
    expect(refusal(() => load('', { REDIS_URL: 'redis://host:99999' }))).toContain('found "redis://host:99999"')
  })

  it('never shows the address of a webhook, which may be a secret, nor a password in that of an upstream', () => {
    const webhook = 'events: {webhook: {format: slack, url: "hooks.example/services/secret"}}'
    expect(refusal(() => load(webhook))).toContain('events.webhook.url: found a text: expected an address such as')
    expect(refusal(() => load('', {}, { upstream: ['a=https://u:se/cret@x/v1'] }))).not.toContain('se/cret')
  })

  it('is rejected if the address of Redis ends with more than the number of its database', () => {
    expect(refusal(() => load('', { REDIS_URL: 'redis://host:1/cache' }))).toContain(
      'redis.url: found "redis://host:1/cache": expected redis://USER:PASSWORD@HOST:PORT/DATABASE, a number last',
    )
  })

  it('is rejected if Sentinels are named without an address, or given without the name of their server', () => {
    const expected = ['nodes: found nothing: expected the addresses', 'name: found nothing: expected the name under']
    const [unplaced = '', unnamed = ''] = ['name: mine', 'nodes: ["redis://a:1"]'].map((given) =>
      refusal(() => load(`redis: {sentinel: {${given}}}`)),
    )
    expect(unplaced).toContain(`redis.sentinel.${expected[0]}`)
    expect(unnamed).toContain(`redis.sentinel.${expected[1]}`)
  })

  it('is rejected with the path of a certificate file that is missing, a folder, encrypted or something else', () => {
    const written = (name: string, text: string) => {
      writeFileSync(join(folder, name), text)
      return join(folder, name)
    }
    const cert = written('cert.pem', '-----BEGIN CERTIFICATE-----\n')
    const encrypted = written('encrypted.pem', '-----BEGIN ENCRYPTED PRIVATE KEY-----\n')
    const said = (tls: Readonly<Record<string, string>>) => refusal(() => load(JSON.stringify({ redis: { tls } })))
    const pem = 'expected the path of a PEM file'
    expect(said({ ca: '/nowhere/ca.pem' })).toContain(`redis.tls.ca: found "/nowhere/ca.pem": ${pem}: no such file`)
    expect(said({ ca: folder })).toContain(`${pem}: a folder`)
    expect(said({ ca: encrypted })).toContain('expected a key without a passphrase')
    expect(said({ cert, key: cert })).toContain(`redis.tls.key: found "${cert}": ${pem}: there is no key in it`)
    expect(said({ cert })).toContain('redis.tls.key: found nothing: expected a file: certificate and key go together')
    expect(said({ key: encrypted })).toContain(`redis.tls.key: found "${encrypted}": is encrypted`)
    const both = written('both.pem', '-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\n')
    expect(load(JSON.stringify({ redis: { tls: { ca: both } } })).redis.tls.ca).toBe(both)
  })

  it('is rejected with the name of the key when a value from the environment or a flag is wrong', () => {
    expect(refusal(() => load('', { PORT: 'abc' }))).toContain('server.port: found "abc": expected a number')
    expect(refusal(() => load('', {}, { 'log-level': 'loud' }))).toContain('log.level: found "loud": expected one of')
  })

  it.each([
    ['500ms', 500],
    ['30s', 30_000],
    ['1.5m', 90_000],
    ['1H', 3_600_000],
    [' 2 d ', 172_800_000],
    ['0s', 0],
  ])('reads the duration %j as %i ms', (text, milliseconds) => {
    expect(load(`timeouts: {idle: "${text}"}`).timeouts.idle).toBe(milliseconds)
  })

  it.each([
    ['100b', 100],
    ['512kb', 524_288],
    ['64MB', 67_108_864],
    ['1.5 gb', 1_610_612_736],
  ])('reads the size %j as %i bytes', (text, bytes) => {
    expect(load(`server: {max_guarded_body: "${text}"}`).server.max_guarded_body).toBe(bytes)
  })

  it.each(['', '30', 's', '-1s', '1 s 2', '1w', '1e3s', 'Infinity s'])('rejects %j as a duration', (text) => {
    expect(refusal(() => load(`timeouts: {idle: "${text}"}`))).toContain('expected a length of time')
  })
})

describe('the configuration of budgets and overrides', () => {
  it.each([
    ['budget: {run: {max_cost_usd: -1}}', 'budget.run.max_cost_usd: found -1: expected at least 0'],
    ['budget: {run: {max_iterations: 3}}', 'budget.run.max_iterations: unknown key: expected one of max_tool_calls'],
    ['budget: {style: shout}', 'budget.style: found "shout": expected one of tiers, countdown'],
    [
      'budget: {texts: {countdown: "{remaining} left"}}',
      'budget.texts.countdown: found "{remaining} left": unknown placeholder {remaining}: expected {meter}',
    ],
    [
      'overrides: [{budget: {texts: {warning: "{n}"}}}]',
      'overrides.0.budget.texts.warning: found "{n}": unknown placeholder {n}',
    ],
    [
      'overrides: [{budget: {max_iteration: 3}}]',
      'overrides.0.budget.max_iteration: unknown key: expected one of enabled',
    ],
    [
      'overrides: [{budget: {caution_threshold: 0.95}}]',
      'overrides.0.budget.caution_threshold: found 0.95: 0.95 is above warning_threshold',
    ],
    ['overrides: [{header: {"a b": x}, budget: {}}]', 'overrides.0.header.a b: '],
    [
      'overrides: [{loop_guard: {modes: warn}}]',
      'overrides.0.loop_guard.modes: unknown key: expected one of enabled, mode',
    ],
    ['overrides: [{mode: warn}]', 'overrides.0.mode: unknown key: expected one of model, upstream, header'],
    [
      'overrides: [{upstream: opnai}]',
      'overrides.0.upstream: found "opnai": no such upstream: expected one of openai, anthropic',
    ],
    [
      'overrides: [{budget: {warning_threshold: 0.5}}]',
      'overrides.0.budget.caution_threshold: found nothing: 0.7 is above warning_threshold, 0.5',
    ],
    ['budget: {tracker: {every: 0}}', 'budget.tracker.every: found 0: expected at least 1'],
    ['overrides: [{model: a}]', 'overrides.0: found keys and values: has no effect: expected a budget'],
    [
      'events: {webhook: {url: "https://a.example", secret: short}}',
      'events.webhook.secret: found a text: expected at least 16 characters',
    ],
    ...['whsec_no base64 at all!', 'whsec_MfKQ9r8GKYqrTwjUPD8IL-', 'whsec_c2hvcnQgb25l'].map((secret) => [
      `events: {webhook: {url: "https://a.example", secret: "${secret}"}}`,
      'events.webhook.secret: found a text: expected base64 of at least 16 bytes after whsec_',
    ]),
    ['models: [{model: a}]', 'models.0: found keys and values: has no effect: expected a price, a context_window'],
    ['models: [{model: a, upstream: b, context_window: 5}]', 'models.0.upstream: found "b": no such upstream'],
  ])('rejects %s: %s', (yaml, message) => {
    expect(() => load(yaml)).toThrow(message)
  })

  it('allows a top-level override to change only the keys that it names', () => {
    const { overrides } = load(
      'overrides: [{header: {user-agent: "*"}, budget: {run: {max_tokens: 5}}, loop_guard: {mode: warn}}]',
    )
    expect(overrides).toEqual([
      { header: { 'user-agent': '*' }, budget: { run: { max_tokens: 5 } }, loop_guard: { mode: 'warn' } },
    ])
  })

  it('allows an override to change any key of the budget', () => {
    const budget = {
      enabled: false,
      style: 'countdown',
      run: { max_tokens: 5 },
      session: { max_iterations: 2 },
      wrap_up: { drop_tools: ['x'] },
    }
    const written = [{ model: '*-mini', header: { 'X-Team': 'a' }, budget }]
    expect(load(`overrides: ${JSON.stringify(written)}`).overrides).toEqual([
      { ...written[0], header: { 'x-team': 'a' } },
    ])
  })
})
