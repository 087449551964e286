import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { type Environment, loadConfig } from '../../src/config/load.ts'
import { captureTerminal } from '../support/terminal.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-usage-'))
afterAll(() => rmSync(folder, { recursive: true }))

let files = 0
/** A configuration file with this text. */
function fileWith(text: string): string {
  const file = join(folder, `${++files}.yaml`)
  writeFileSync(file, text)
  return file
}

async function governor(args: readonly string[], env: Environment = {}) {
  const terminal = captureTerminal({ env })
  const code = await run(args, terminal)
  return { code, out: terminal.printed, err: terminal.complaints }
}

/** Returns the mistakes that `check-config` reports about a file, without the name of the file and the line. */
async function complaintsAbout(text: string, env: Environment = {}): Promise<string[]> {
  const file = fileWith(text)
  const { code, out, err } = await governor(['check-config', '--config', file], env)
  expect(code).toBe(2)
  expect(out).toBe('')
  const [title, ...problems] = err.trimEnd().split('\n')
  expect(title).toBe('governor: the configuration is wrong')
  return problems.map((line) =>
    line
      .trim()
      .replace(`${file}: `, '')
      .replace(/ \(line \d\)$/, ''),
  )
}

it.each(['sessions', 'top', 'suggest'])('%s asks the Governor on the port of --port', async (command) => {
  const { code, err } = await governor([command, '--port', '1'], { PORT: '2' })
  expect(err).toContain('no Governor answers at http://127.0.0.1:1:')
  expect(code).toBe(1)
})

const SWITCHED = 'one of 0, 1, true, on, yes, false, off, no, or nothing'

describe('the built command', () => {
  const main = resolve('dist/main.js')
  /** The real program, away from this repository's own configuration file. */
  const spawned = (...args: string[]) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, [main, ...args], {
      cwd: folder,
      encoding: 'utf8',
      env: {},
    })
    return { status, stdout, stderr }
  }

  it('prints its version', () => {
    const { version } = JSON.parse(readFileSync('package.json', 'utf8'))
    for (const typed of ['--version', 'version'])
      expect(spawned(typed)).toEqual({ status: 0, stdout: `${version}\n`, stderr: '' })
  })

  it('exits with code 2 and the mistake, without a stack trace, when the configuration is wrong', () => {
    const file = fileWith('budget:\n  max_iteration: 5\n')
    const { status, stdout, stderr } = spawned('start', '--config', file)
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' })
    expect(stderr).toMatch(
      /^governor: the configuration is wrong\n {2}\S+: budget\.max_iteration: unknown key: expected one of enabled, max_iterations, [^\n]+\n$/,
    )
  })
})

describe('the command line', () => {
  it('prints its commands, flags and variables with --help', async () => {
    const { code, out } = await governor(['--help'])
    expect(code).toBe(0)
    for (const word of ['start', 'check-config', 'demo', '--config', '--upstream', 'OPENAI_UPSTREAM_URL']) {
      expect(out).toContain(word)
    }
  })

  it('answers help like --help', async () => {
    expect(await governor(['help'])).toEqual(await governor(['--help']))
  })

  it.each([
    { args: ['fly'], says: 'there is no command fly' },
    { args: ['start', 'now'], says: 'unexpected argument now' },
    { args: ['--observe', 'maybe'], says: `there is no command maybe: --observe takes ${SWITCHED}` },
    { args: ['start', '--observe', 'maybe'], says: `unexpected argument maybe: --observe takes ${SWITCHED}` },
    { args: ['--budget', '5'], says: "Unknown option '--budget'" },
    { args: ['--port'], says: "Option '--port <value>' argument missing" },
  ])('answers $args with exit code 2 and one line', async ({ args, says }) => {
    expect(await governor(args)).toEqual({
      code: 2,
      out: '',
      err: `governor: ${says}: --help shows the commands and flags\n`,
    })
  })

  it('rejects a negative port', async () => {
    const file = fileWith('')
    expect(await governor(['check-config', '--config', file, '--port', '-1'])).toEqual({
      code: 2,
      out: '',
      err: 'governor: the configuration is wrong\n  --port: server.port: found -1: expected at least 0\n',
    })
  })
})

describe('check-config', () => {
  it('reports all mistakes at once, each with its path, what was found and what was expected', async () => {
    const problems = await complaintsAbout(`
server: { port: high, drain_timeout: 30, host: 5 }
upstreams: { openai: { url: localhost, apikey: x }, v1: { url: "http://127.0.0.1" } }
budget: { max_iterations: 2.5, caution_threshold: 95, channel: loud, run: 7, texts: { caution: "{x}" } }
sessions: { headers: x-id, max: 0 }
retries: 3
`)
    expect(problems).toEqual(
      expect.arrayContaining([
        'server.port: found "high": expected a number',
        'server.drain_timeout: found 30: expected a length of time such as 500ms, 30s, 15m, 1h or 2d',
        'server.host: found 5: expected a text',
        'upstreams.openai.url: found "localhost": expected an http:// or https:// URL',
        'upstreams.openai.apikey: unknown key: expected one of url, api_key, headers, strip_name: did you mean api_key?',
        'upstreams.v1: looks like an API version: expected another name',
        'budget.max_iterations: found 2.5: expected a whole number',
        'budget.caution_threshold: found 95: expected at most 1',
        'budget.channel: found "loud": expected one of auto, tool_result, system, user',
        expect.stringMatching(/^budget\.run: found 7: expected keys and values: max_tool_calls, /),
        'sessions.headers: found a text: expected a list',
        'sessions.max: found 0: expected at least 1',
      ]),
    )
    expect(problems.find((line) => line.startsWith('retries: unknown key: expected one of server, '))).toBeTruthy()
    expect(problems.find((line) => line.includes('unknown placeholder {x}: expected {meter}'))).toBeTruthy()
  })

  it('never repeats a key from a wrong configuration', async () => {
    const secrets = 'sk-1234567890'
    const problems = await complaintsAbout(`
server: { access_keys: ${secrets} }
upstreams: { openai: { url: "http://127.0.0.1", api_key: [${secrets}], headers: { authorization: 123456789 } } }
`)
    expect(problems).toContain('upstreams.openai.headers.authorization: found a number: expected a text')
    expect(problems).toContain('upstreams.openai.api_key: found a list: expected a text')
    expect(problems).toHaveLength(3)
    expect(problems.join()).not.toMatch(/sk-|123456789/)
  })

  it.each([
    { text: 'budget: [', says: /^not valid YAML: .* at line 1, column 10$/ },
    {
      text: 'store: memory\nstore: memory',
      says: /^not valid YAML: Map keys must be unique at line 2, column 1$/,
    },
    { text: 'sessions: { headers: [*any] }', says: /^not valid YAML: .*: quote texts that start with \*$/ },
    { text: '- budget', says: /^found a list: expected keys and values$/ },
    {
      text: 'upstreams: { more: }',
      says: /^upstreams\.more\.url: found nothing: expected an http:\/\/ or https:\/\/ URL$/,
    },
    { text: 'budget: { max_iterations: }', says: /^budget\.max_iterations: found null: expected a number$/ },
  ])('reports in one line that $text is wrong', async ({ text, says }) => {
    const problems = await complaintsAbout(text)
    expect(problems).toHaveLength(1)
    expect(problems[0]).toMatch(says)
  })

  it('reports which file is missing, also when a variable names the file', async () => {
    const missing = join(folder, 'none.yaml')
    const says = `governor: the configuration is wrong\n  ${missing}: can't be read (no such file): check the path given with --config or GOVERNOR_CONFIG\n`
    expect(await governor(['check-config', '--config', missing])).toEqual({ code: 2, out: '', err: says })
    expect((await governor(['check-config'], { GOVERNOR_CONFIG: missing })).err).toBe(says)
  })

  it('names the flag or the variable when the mistake is not in the file', async () => {
    const file = fileWith('')
    const args = ['check-config', '--config', file]
    expect((await governor(args, { PORT: 'http' })).err).toContain(
      '  PORT: server.port: found "http": expected a number\n',
    )
    expect((await governor([...args, '--port', '70000'], { PORT: '80' })).err).toContain(
      '  --port: server.port: found 70000: expected at most 65535\n',
    )
    expect((await governor(args, { OPENAI_UPSTREAM_URL: 'here' })).err).toContain('  OPENAI_UPSTREAM_URL: ')
  })
})

describe('a configuration', () => {
  it('can be checked without starting Governor', async () => {
    const file = fileWith('budget: { max_iterations: 5 }')
    expect(await governor(['check-config', '--config', file])).toEqual({
      code: 0,
      out: `${file}: valid\n`,
      err: '',
    })
  })

  it('may use variables in values, with a default if they are empty or not set', () => {
    const file = fileWith(`
server:
  host: $\${HOST}
  port: \${A_PORT:-1234}
  access_keys: ["\${KEY}"]
upstreams:
  openai:
    url: http://\${UPSTREAM}/v1
    api_key: \${KEY}
budget:
  max_iterations: \${MAX:-7}
  enabled: \${ON}
  texts:
    caution: "{used} of \${WHAT:-}"
`)
    const env = { KEY: 'sk #1', UPSTREAM: '127.0.0.1:1', MAX: '', ON: 'false', HOST: '' }
    const { config } = loadConfig({ config: file }, env)
    expect(config.server).toMatchObject({ host: '$'.concat('{HOST}'), port: 1234, access_keys: ['sk #1'] })
    expect(config.upstreams['openai']).toMatchObject({ url: 'http://127.0.0.1:1/v1', api_key: 'sk #1' })
    expect(config.budget).toMatchObject({
      max_iterations: 7,
      enabled: false,
      texts: { caution: '{used} of ' },
    })
  })

  it('with an unset variable is rejected with the name of the variable and its line', async () => {
    expect(await complaintsAbout(`server:\n  host: \${NOWHERE}\n`)).toEqual([
      expect.stringMatching(
        /line 2: the environment variable NOWHERE is not set: set it, or write \$\{NOWHERE:-default\}$/,
      ),
    ])
  })

  it('takes a value from the flag before the environment, the file and the default', () => {
    const config = fileWith('server: { host: 127.0.0.2, port: 1 }\nlog: { level: warn }\n')
    const env = { HOST: '127.0.0.3', PORT: '2', OPENAI_UPSTREAM_URL: 'http://127.0.0.1:1', LOG_LEVEL: '' }
    const loaded = loadConfig({ config, port: '3', upstream: ['anthropic=http://127.0.0.1:2'] }, env).config
    expect(loaded.server).toMatchObject({ host: '127.0.0.3', port: 3, websocket: 'guard' })
    expect(loaded.log.level).toBe('warn')
    expect(loaded.upstreams['openai']?.url).toBe('http://127.0.0.1:1')
    expect(loaded.upstreams['anthropic']?.url).toBe('http://127.0.0.1:2')
  })

  it('may have sections that contain only comments', () => {
    const file = fileWith('budget:\n  # max_iterations: 5\nupstreams:\nsessions:\n  scaffolding:\n')
    expect(loadConfig({ config: file }, {}).config.budget.max_iterations).toBe(300)
  })
})
