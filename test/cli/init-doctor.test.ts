/** `governor init` and `governor doctor`, with the built program. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { loadConfig } from '../../src/config/load.ts'
import { MAIN, startProcess, temporaryFolder } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { serve } from '../support/provider.ts'
import { freePort } from '../support/redis.ts'
import { openPane } from '../support/tmux.ts'

/** Runs the built program to its end in a folder, with these lines on standard input. */
async function governor(
  args: readonly string[],
  { cwd = temporaryFolder(), input = '', env = {} as Readonly<Record<string, string>> } = {},
) {
  const child = spawn(process.execPath, [MAIN, ...args], { cwd, env })
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  let out = ''
  let err = ''
  child.stdout.on('data', (data) => {
    out += data
  })
  child.stderr.on('data', (data) => {
    err += data
  })
  child.stdin.end(input)
  const [code] = await once(child, 'close')
  return { code: code as number, out, err, file: join(cwd, 'governor.yaml') }
}

describe('governor init', () => {
  it('writes ten lines for the answers to four questions, and says what to type next', async () => {
    const { code, out, file } = await governor(['init'], { input: '4\n$2.50\nobserve\n12\n' })
    expect(code).toBe(0)
    expect(out.match(/\?/g)).toHaveLength(4)
    expect(out).toContain('set OPENAI_BASE_URL=http://127.0.0.1:8787/v1')
    const text = readFileSync(file, 'utf8')
    expect(text.trimEnd().split('\n').length).toBeLessThanOrEqual(10)
    const { config } = loadConfig({ config: file }, {})
    expect(config).toMatchObject({
      mode: 'observe',
      budget: { max_iterations: 300, run: { max_cost_usd: 2.5 }, day: { max_cost_usd: 12 } },
      usage: { journal: '~/.local/state/governor/usage.jsonl' },
    })
  })

  it('asks again for an answer that it can not read, and takes the default for an empty one', async () => {
    const { out, file } = await governor(['init'], { input: '9\n\nmuch\n\n\n' })
    expect(out).toContain('Now: governor run -- claude')
    expect(out.match(/Which client\?/g)).toHaveLength(2)
    expect(out).toContain('"9": expected a number from 1 to 6\n')
    expect(out).toContain('"much": expected dollars, such as 5 or 0.25\n')
    expect(loadConfig({ config: file }, {}).config).toMatchObject({
      mode: 'enforce',
      budget: { run: { max_cost_usd: 5 }, day: { max_cost_usd: 20 } },
    })
  })

  it('takes the beginning of a mode for it', async () => {
    const { out, file } = await governor(['init'], { input: '\n\no\n\n' })
    expect(out).not.toContain('expected')
    expect(loadConfig({ config: file }, {}).config.mode).toBe('observe')
  })

  it('names a command for the status line that works in another folder, where governor is none', async () => {
    const { out } = await governor(['init', '--yes'])
    const [, setting = ''] = /^ {2}"statusLine": (.+)$/m.exec(out) ?? []
    const { command } = JSON.parse(setting) as { command: string }
    const cwd = temporaryFolder()
    const ended = spawnSync('/bin/sh', ['-c', command], { cwd, env: { PATH: dirname(process.execPath) }, input: '{}' })
    expect([ended.status, String(ended.stderr)]).toEqual([0, ''])
    expect(out).toContain(`stands for ${command.replace(' statusline', '')}, in every folder`)
  })

  it.each(['Infinity', '1e400', '$', '0x10', '9'.repeat(400)])(
    'asks again for dollars that are no amount: %s',
    async (text) => {
      const { out, file } = await governor(['init'], { input: `1\n${text}\n$7.25\n\n` })
      expect(out.match(/Dollars/g)).toHaveLength(2)
      expect(loadConfig({ config: file }, {}).config).toMatchObject({ budget: { run: { max_cost_usd: 7.25 } } })
    },
  )

  it('asks nothing with --yes, nor where a file is, and never writes over one', async () => {
    const cwd = temporaryFolder()
    const first = await governor(['init', '--yes'], { cwd })
    expect(first).toMatchObject({ code: 0, err: '' })
    expect(first.out).not.toContain('?')
    writeFileSync(first.file, 'mode: observe\n')
    for (const typed of [['init', '-y'], ['init']]) {
      const again = await governor(typed, { cwd, input: '1\n1\nenforce\n1\n' })
      expect(again).toMatchObject({ code: 1, out: '', err: expect.stringContaining('governor.yaml is here already') })
    }
    expect(readFileSync(first.file, 'utf8')).toBe('mode: observe\n')
  })
})

/** A provider that knows one key; `asked` holds the requests for its list of models. */
async function startProvider() {
  const asked: string[] = []
  const provider = await serve((request, response) => {
    const key = request.headers.authorization ?? request.headers['x-api-key']
    asked.push(`${request.method} ${request.url} ${key}`)
    response.writeHead(key === 'Bearer sk-good' ? 200 : 401, { 'content-type': 'application/json' })
    response.end('{"data":[]}')
  })
  onTestFinished(() => provider.close())
  return { url: provider.url, asked }
}

async function doctorSays(config: object, env: Readonly<Record<string, string>> = {}) {
  const cwd = temporaryFolder()
  writeFileSync(join(cwd, 'governor.yaml'), JSON.stringify(config))
  const { code, out, err } = await governor(['doctor', '--json'], { cwd, env: { HOME: cwd, ...env } })
  const checks = out
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, string>)
  return {
    code,
    err,
    checks: Object.fromEntries(checks.map(({ check, result, says }) => [check, `${result}: ${says}`])),
  }
}

describeWith('tmux', 'governor init on a terminal', () => {
  it('writes nothing where a person leaves its questions with Ctrl-D', async () => {
    const cwd = temporaryFolder()
    const pane = await openPane(120)
    await pane.enter(`cd ${cwd}; clear; node ${MAIN} init`)
    await pane.shows(/^\[1\]/m)
    await pane.press('2', 'Enter')
    await pane.shows('Dollars that one task may cost')
    await pane.press('C-d')
    await pane.shows(/^governor: governor.yaml is not written: a question has no answer; --yes takes all defaults/m)
    expect(existsSync(join(cwd, 'governor.yaml'))).toBe(false)
  })
})

describe('governor doctor', () => {
  it('says that all is well: configuration, port, upstreams, keys, prices, store and journal', async () => {
    const provider = await startProvider()
    const port = await freePort()
    const { code, checks } = await doctorSays({
      server: { port },
      upstreams: {
        openai: { url: provider.url },
        anthropic: { url: `${provider.url}/v1` },
        gemini: { url: provider.url },
        house: { url: provider.url, api_key: 'sk-good' },
      },
    })
    expect(checks).toEqual({
      configuration: 'ok: governor.yaml',
      port: `ok: 127.0.0.1:${port} is free`,
      'upstream openai': `ok: ${provider.url} answers with 401`,
      'key of openai': "ok: the client's own, passed on",
      'upstream anthropic': `ok: ${provider.url} answers with 401`,
      'upstream gemini': `ok: ${provider.url} answers with 401`,
      'key of gemini': "ok: the client's own, passed on",
      'key of anthropic': "ok: the client's own, passed on",
      'upstream house': `ok: ${provider.url} answers with 200`,
      'key of house': 'ok: held by Governor',
      prices: 'ok: the catalogue is there',
      store: 'ok: memory: sessions are forgotten at the end',
      journal: 'ok: none: usage.journal names a file for governor report',
    })
    expect(code).toBe(0)
    expect(provider.asked.toSorted()).toEqual([
      'GET /v1/models Bearer sk-good',
      'GET /v1/models undefined',
      'GET /v1/models undefined',
      'GET /v1beta/models undefined',
    ])
  })

  it.each([
    { name: 'anna', key: 'key-of-anna', models: ['gpt-*'] },
    { name: 'anna', key_sha256: 'ab'.repeat(32) },
    'key-of-anna',
  ])('tries the key that Governor holds, whatever access keys there are (%j)', async (accessKey) => {
    const provider = await startProvider()
    const { checks } = await doctorSays({
      server: { port: await freePort(), access_keys: [accessKey] },
      upstreams: {
        openai: { url: provider.url },
        anthropic: { url: provider.url, api_key: 'sk-bad' },
        gemini: { url: provider.url },
        house: { url: provider.url, api_key: 'sk-good' },
      },
    })
    expect(checks).toMatchObject({
      'upstream house': `ok: ${provider.url} answers with 200`,
      'key of house': 'ok: held by Governor',
      'key of anthropic': 'wrong: held by Governor, and refused with 401',
    })
    expect(provider.asked.filter((line) => !line.includes('sk-')).toSorted()).toEqual([
      'GET /v1/models undefined',
      'GET /v1beta/models undefined',
    ])
  })

  it('ends with 1 and names what is wrong: an upstream that is gone, a key that is refused, Redis that is down', async () => {
    const provider = await startProvider()
    const gone = `http://127.0.0.1:${await freePort()}`
    const port = await freePort()
    const { code, checks, err } = await doctorSays(
      {
        server: { port: await freePort() },
        upstreams: {
          openai: { url: gone },
          anthropic: { url: provider.url, api_key: 'sk-bad' },
          gemini: { url: provider.url },
        },
      },
      { REDIS_URL: `redis://127.0.0.1:${port}` },
    )
    expect(checks).toMatchObject({
      'upstream openai': expect.stringMatching(
        new RegExp(`^wrong: ${gone}: .*connection refused. Check upstreams.openai.url.`),
      ),
      'key of anthropic': 'wrong: held by Governor, and refused with 401',
      store: `wrong: redis can't be used (connect ECONNREFUSED 127.0.0.1:${port}): see redis.url`,
    })
    expect(JSON.stringify(checks) + err).not.toContain('sk-bad')
    expect(code).toBe(1)
  })

  it('tells a Governor on its port from another program there', async () => {
    const provider = await startProvider()
    const upstreams = { openai: { url: provider.url }, anthropic: { url: provider.url }, gemini: { url: provider.url } }
    const running = await startProcess(provider.url)
    const own = await doctorSays({ upstreams, server: { port: Number(new URL(running.url).port) } })
    expect(own.checks['port']).toMatch(/^ok: Governor \S+ listens on /)
    const headers = { authorization: 'Bearer sk-good' }
    await fetch(`${running.url}/v2/chat`, { method: 'POST', body: '{"messages":[]}', headers })
    const later = await doctorSays({ upstreams, server: { port: Number(new URL(running.url).port) } })
    expect(later.checks['guarded']).toBe('warning: not in full: an agent calls a path that is not guarded (1)')
    expect(later.code).toBe(0)
    const other = await serve((_request, response) => response.end('no Governor'))
    onTestFinished(() => other.close())
    const { port } = new URL(other.url)
    const taken = await doctorSays({ upstreams, server: { port: Number(port) } })
    expect(taken.checks).not.toHaveProperty('guarded')
    expect(taken.checks['port']).toBe(
      `wrong: port ${port} on 127.0.0.1 is in use: stop what listens there, or choose another with --port`,
    )
    expect(taken.code).toBe(1)
  })

  it('says whether a guarded request came yet to the Governor on its port', async () => {
    const provider = await startProvider()
    const upstreams = { openai: { url: provider.url }, anthropic: { url: provider.url }, gemini: { url: provider.url } }
    const running = await startProcess(provider.url)
    const server = { port: Number(new URL(running.url).port) }
    const guarded = async () => (await doctorSays({ upstreams, server })).checks['guarded']
    expect(await guarded()).toBe(
      'warning: no guarded request came yet: docs/clients.md says what each agent has to be told',
    )
    const body = JSON.stringify({ model: 'gpt-5', messages: [{ role: 'user', content: 'Hello' }] })
    const headers = { 'content-type': 'application/json' }
    await fetch(`${running.url}/v1/chat/completions`, { method: 'POST', body, headers })
    expect(await guarded()).toBe('ok: all requests so far')
  })

  it('names each file of an agent that leads it past the port, and says what to write there', async () => {
    const provider = await startProvider()
    const upstreams = { openai: { url: provider.url }, anthropic: { url: provider.url }, gemini: { url: provider.url } }
    const port = await freePort()
    const home = temporaryFolder()
    const write = (file: string, text: string) => {
      mkdirSync(join(home, file, '..'), { recursive: true })
      writeFileSync(join(home, file), text)
    }
    write('.claude/settings.json', '{"env": {"ANTHROPIC_BASE_URL": "https://me:secret@gateway.example"}}')
    write(
      '.codex/config.toml',
      '# openai_base_url = "http://old.example/v1"\nopenai_base_url = "http://a.example/v1"\n',
    )
    write('.continue/config.yaml', `models:\n  - name: m\n    apiBase: http://localhost:${port}/v1\n`)
    write('.qwen/settings.json', '{ not JSON at all')
    const { checks, code, err } = await doctorSays({ upstreams, server: { port } }, { HOME: home })
    const agents = Object.entries(checks).filter(([check]) => check.startsWith('agent '))
    const to = `http://127.0.0.1:${port}`
    expect(Object.fromEntries(agents)).toEqual({
      'agent claude': `warning: not guarded: ~/.claude/settings.json leads it to https://gateway.example: write ${to} there`,
      'agent codex': `warning: not guarded: ~/.codex/config.toml leads it to http://a.example/v1: write ${to}/v1 there`,
    })
    expect(JSON.stringify(checks) + err).not.toContain('secret')
    expect(code).toBe(0)
  })

  it('looks at the files of an agent where its user moved them', async () => {
    const moved = [
      ['claude', 'CLAUDE_CONFIG_DIR', 'settings.json'],
      ['codex', 'CODEX_HOME', 'config.toml'],
      ['opencode', 'XDG_CONFIG_HOME', 'opencode/opencode.json'],
      ['pi', 'PI_CODING_AGENT_DIR', 'models.json'],
      ['qwen', 'QWEN_HOME', 'settings.json'],
      ['cn', 'CONTINUE_GLOBAL_DIR', 'config.yaml'],
      ['cline', 'CLINE_DATA_DIR', 'settings/providers.json'],
    ] as const
    const env: Record<string, string> = {}
    for (const [, variable, file] of moved) {
      const folder = temporaryFolder()
      env[variable] = folder
      mkdirSync(join(folder, file, '..'), { recursive: true })
      writeFileSync(join(folder, file), '"base_url": "http://a.example/v1"')
    }
    const port = await freePort()
    const closed = { url: 'http://127.0.0.1:1' }
    const upstreams = { openai: closed, anthropic: closed, gemini: closed }
    const { checks } = await doctorSays({ upstreams, server: { port } }, env)
    const write = `leads it to http://a.example/v1: write http://127.0.0.1:${port}/v1 there`
    for (const [name, variable, file] of moved)
      expect(checks[`agent ${name}`]).toBe(`warning: not guarded: $${variable}/${file} ${write}`)
  })

  it('names an address for other machines as wrong where Governor holds a key that needs no access key', async () => {
    const provider = await startProvider()
    const upstreams = { openai: { url: provider.url, api_key: 'sk-good' }, anthropic: { url: provider.url } }
    const { checks, code } = await doctorSays({ server: { host: '0.0.0.0', port: await freePort() }, upstreams })
    expect(checks['access keys']).toBe(
      'wrong: 0.0.0.0: anybody who reaches this address can use the upstream keys: set server.access_keys',
    )
    expect(code).toBe(1)
  })

  it('names the models of the journal whose price is not known', async () => {
    const provider = await startProvider()
    const file = join(temporaryFolder(), 'state', 'usage.jsonl')
    mkdirSync(dirname(file))
    const time = new Date().toISOString()
    const lines = ['house-7b', 'gpt-4o', 'mine'].map((model) => JSON.stringify({ time, model, upstream: 'openai' }))
    writeFileSync(file, lines.join('\n'))
    const { checks, code } = await doctorSays({
      server: { port: await freePort() },
      upstreams: { openai: { url: provider.url }, anthropic: { url: provider.url }, gemini: { url: provider.url } },
      models: [{ model: 'mine', price: { input: 0, output: 0 } }],
      usage: { journal: file },
    })
    expect(checks['prices']).toBe('warning: not known for house-7b: set them in models')
    expect(checks['journal']).toBe(`ok: ${file}`)
    expect(code).toBe(0)
  })

  it('says why the journal can not be written', async () => {
    const provider = await startProvider()
    const folder = temporaryFolder()
    const file = join(folder, 'file')
    writeFileSync(file, '')
    for (const [journal, problem] of [
      [folder, `${folder} is a folder`],
      [join(file, 'usage.jsonl'), `${file} is no folder`],
    ] as const) {
      const { checks, code } = await doctorSays({
        server: { port: await freePort() },
        upstreams: { openai: { url: provider.url }, anthropic: { url: provider.url }, gemini: { url: provider.url } },
        usage: { journal },
      })
      expect(checks['journal']).toBe(`wrong: can't be written: ${problem}. See usage.journal.`)
      expect(code).toBe(1)
    }
  })
})
