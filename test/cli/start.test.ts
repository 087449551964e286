/** The built program, started and signalled as a supervisor would. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, existsSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { gzipSync } from 'node:zlib'
import { afterAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { callModel, runAgent, START } from '../support/agent.ts'
import { PLACES } from '../support/foreign.ts'
import { launch, MAIN } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { type ChatBody, chunks, completion, runaway, serve, startProvider } from '../support/provider.ts'
import { freePort } from '../support/redis.ts'
import { openPane } from '../support/tmux.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-start-'))
const file = join(folder, 'governor.yaml')

afterAll(() => rmSync(folder, { recursive: true }))

/** A provider whose streams end when they are released. */
async function startHoldingProvider() {
  let release = () => {}
  const released = new Promise<void>((resolve) => {
    release = resolve
  })
  const answer = { text: 'It is made of cheese, as far as anybody knows.' }
  const provider = await serve(async (request, response) => {
    let text = ''
    for await (const part of request) text += part
    const body = JSON.parse(text) as ChatBody
    if (!body.stream) {
      response.writeHead(200, { 'content-type': 'application/json' })
      response.end(JSON.stringify(completion(body, { calls: [{ name: 'search', arguments: {} }] }, 1)))
      return
    }
    const [first, ...others] = chunks(body, answer, 1)
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(first)
    await released
    response.end(others.join(''))
  })
  onTestFinished(() => provider.close())
  return { url: provider.url, release, answer }
}

async function get(url: string): Promise<number> {
  const response = await fetch(url, { headers: { connection: 'close' } })
  await response.arrayBuffer()
  return response.status
}

describe('a Governor for which no file is named', () => {
  const PLACES_OF_FILES = ['governor.yaml', 'config/governor.yaml', 'home/.config/governor/governor.yaml'] as const
  // With each of them as the first one that is there, and all later ones there too.
  const cases = [0, 1, 2, 3].map((missing) => PLACES_OF_FILES.slice(missing))
  const writing = (files: readonly string[]) =>
    ['mkdir -p config home/.config/governor', 'HOME="$PWD/home"; export HOME']
      .concat(files.map((one) => `echo "{server: {port: 0}, budget: {max_iterations: ${one.length}}}" > ${one}`))
      .join('; ')

  it.each(cases)('reads the first of %s %s %s and names it when it starts and when it reloads', async (...files) => {
    const [first] = files
    const program = launch(first ? [] : ['--port', '0'], {}, { shell: writing(files) })
    const started = await program.line('listening')
    expect(started['max_iterations']).toBe(first?.length ?? 300)
    const named = first?.startsWith('home') ? expect.stringMatching(`^/.*/${first}$`) : (first ?? null)
    expect(started['config']).toEqual(named)
    program.child.kill('SIGHUP')
    expect((await program.line('policies reloaded'))['config']).toEqual(named)
  })

  it('reads the file that is named even if there is one in its folder', async () => {
    writeFileSync(file, '{server: {port: 0}, budget: {max_iterations: 7}}')
    const shell = writing([...PLACES_OF_FILES])
    const programs = [launch(['--config', file], {}, { shell }), launch([], { GOVERNOR_CONFIG: file }, { shell })]
    for (const { line } of programs) expect(await line('listening')).toMatchObject({ config: file, max_iterations: 7 })
  })

  it('does not start with a file in its folder that it can not read or that is wrong', async () => {
    const shells = ['mkdir governor.yaml', 'echo "nope: 1" > governor.yaml']
    for (const program of shells.map((shell) => launch([], {}, { shell }))) {
      expect(await program.exitCode).toBe(2)
      expect(program.complaints()).toContain('governor.yaml: ')
    }
  })

  it('starts where its home is not there or not its own', async () => {
    const programs = ['/nonexistent', '/dev/null', '/proc/1/root'].map((HOME) => launch(['--port', '0'], { HOME }))
    for (const { line } of programs) expect((await line('listening'))['config']).toBeNull()
  })
})

describe('a started Governor', () => {
  it('reloads its policies on SIGHUP; on SIGTERM it finishes running requests and accepts no new ones', async () => {
    const provider = await startHoldingProvider()
    const write = (budget: string) =>
      writeFileSync(
        file,
        `server:\n  port: 1\n  drain_timeout: 1h\nupstreams:\n  openai:\n    url: \${PROVIDER}\nlog:\n  level: silent\nbudget:\n  ${budget}\n`,
      )
    write('max_iterations: 7')
    const env = { PROVIDER: provider.url, LOG_LEVEL: 'info', PORT: '2' }
    const { child, log, line, exitCode, complaints } = launch(['--config', file, '--port', '0'], env)
    const listening = await line('listening')
    expect(listening).toMatchObject({ config: file, max_iterations: 7, upstreams: { openai: provider.url } })
    const url = String(listening['address'])

    const secrets = { authorization: 'Bearer sk-very-secret', 'x-api-key': 'sk-other-secret' }
    const iteration = async () => {
      const { headers } = await callModel(url, [...START, { role: 'user', content: 'What is the moon made of?' }], {
        headers: secrets,
      })
      return headers.get('x-governor-iteration')
    }
    expect(await iteration()).toBe('1/7')

    write('max_iterations: 9')
    child.kill('SIGHUP')
    expect(await line('policies reloaded')).toMatchObject({ config: file, max_iterations: 9 })
    expect(await iteration()).toBe('1/9')

    write('max_iterations: many')
    child.kill('SIGHUP')
    const refused = await line('configuration not reloaded: the one before stays in force')
    expect(refused['problems']).toEqual([`${file}: budget.max_iterations: found "many": expected a number (line 10)`])
    expect(await iteration()).toBe('1/9')

    const body = { model: 'gpt-test', messages: START, tools: [{ type: 'function' }], stream: true }
    const stream = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...secrets },
      body: JSON.stringify(body),
    })
    expect(await get(`${url}/ready`)).toBe(200)
    child.kill('SIGTERM')
    await line('draining')
    expect(await get(`${url}/ready`)).toBe(503)
    expect(await get(`${url}/health`)).toBe(200)
    expect(await get(`${url}/v1/models`)).toBe(503)
    provider.release()
    expect(await stream.text()).toBe(chunks(body, provider.answer, 1).join(''))
    expect(await line('stopped')).toMatchObject({ complete: true })
    expect(await exitCode).toBe(0)
    expect(complaints()).toBe('')
    // One line per request, without prompts, answers or keys.
    expect(log.filter((text) => JSON.parse(text).msg === 'request').length).toBeGreaterThanOrEqual(4)
    expect(log.join('\n')).not.toMatch(/secret|moon|cheese|research agent/)
  })

  it('sends a browser that opens its address to the page, and the requests of programs to the upstream', async () => {
    const upstream = await serve((request, response) => response.end(`upstream ${request.method} ${request.url}`))
    onTestFinished(() => upstream.close())
    const { address, page } = await launch(['--port', '0', '--upstream', upstream.url]).line('listening')
    expect(page).toBe(`${address}/governor/`)
    const open = async (path: string, accept: string, method = 'GET') => {
      const response = await fetch(`${address}${path}`, { method, headers: { accept }, redirect: 'manual' })
      return response.headers.get('location') ?? (await response.text())
    }
    expect(await open('/', 'text/html,application/xhtml+xml,*/*;q=0.8')).toBe('/governor/')
    expect(await open('/', '*/*')).toBe('upstream GET /')
    expect(await open('/', 'text/html', 'POST')).toBe('upstream POST /')
    expect(await open('/index.html', 'text/html')).toBe('upstream GET /index.html')
  })

  it('exits at once on SIGTERM when no request is running, even with kept-alive connections', async () => {
    const { child, line, exitCode } = launch(['--port', '0'])
    const { address, config } = await line('listening')
    expect(config).toBeNull()
    const agent = new http.Agent({ keepAlive: true })
    onTestFinished(() => agent.destroy())
    await new Promise<void>((resolve, reject) => {
      http
        .get(`${address}/health`, { agent }, (response) => response.resume().once('end', resolve))
        .once('error', reject)
    })
    child.kill('SIGTERM')
    expect(await exitCode).toBe(0)
  })

  it('logs after SIGHUP which changed keys need a restart, without their values', async () => {
    const write = (upstreams: string, more: string) =>
      writeFileSync(file, `upstreams: { ${upstreams} }\nbudget: { max_iterations: 7 }\n${more}\n`)
    write('openai: { url: "http://127.0.0.1:1" }, old: { url: "http://127.0.0.1:1" }', '')
    const { child, log, line, exitCode } = launch(['--config', file, '--port', '0'])
    await line('listening')
    child.kill('SIGHUP')
    await line('policies reloaded')
    write(
      'openai: { url: "http://127.0.0.1:2", headers: { x-key: sk-secret } }, new: { url: "http://127.0.0.1:3" }',
      'sessions: { max: 5 }\nserver: { access_keys: [secret] }\nstop: { text: Stop. }\noverrides: [{ model: m, budget: { max_iterations: 3 } }]',
    )
    child.kill('SIGHUP')
    expect(await line('these keys have changed: a restart puts them in force')).toMatchObject({
      level: 40,
      keys: [
        ...['upstreams.openai.url', 'upstreams.openai.headers.x-key', 'upstreams.old', 'upstreams.new'],
        'sessions.max',
      ],
    })
    child.kill('SIGTERM')
    expect(await exitCode).toBe(0)
    expect(log.filter((text) => text.includes('a restart puts them'))).toHaveLength(1)
    expect(log.join('\n')).not.toContain('secret')
  })

  it.each([
    ['api_key: sk-very-secret', '0.0.0.0', '', 1],
    ['headers: { cf-aig-authorization: sk-very-secret }', '0.0.0.0', '', 1],
    ['headers: { x-team: blue }', '0.0.0.0', '', 0],
    ['headers: { cf-aig-authorization: sk-very-secret }', '0.0.0.0', 'access_keys: [mine]', 0],
    ['headers: { cf-aig-authorization: sk-very-secret }', '127.0.0.1', '', 0],
  ])('with %s on %s and {%s} warns %i times that anybody may use its keys', async (held, host, more, times) => {
    writeFileSync(file, `server: { host: ${host}, port: 0, ${more} }\nupstreams: { openai: { ${held} } }\n`)
    const { child, log, line, exitCode } = launch(['--config', file])
    await line('listening')
    child.kill('SIGTERM')
    expect(await exitCode).toBe(0)
    expect(log.filter((text) => text.includes('set server.access_keys'))).toHaveLength(times)
    expect(log.join('\n')).not.toContain('secret')
  })

  it('reports in one line that its port is in use', async () => {
    const other = await serve((_request, response) => response.end())
    onTestFinished(() => other.close())
    const { port } = new URL(other.url)
    const { exitCode, complaints, log } = launch(['--port', port])
    expect(await exitCode).toBe(1)
    expect(complaints()).toBe(
      `governor: port ${port} on 127.0.0.1 is in use: stop what listens there, or choose another with --port\n`,
    )
    expect(log).toEqual([])
  })

  it('reports in one line that Redis cannot be reached, and starts anyway', async () => {
    const port = await freePort()
    const { line, log, complaints } = launch(['--port', '0'], { REDIS_URL: `redis://127.0.0.1:${port}` })
    const { address, store } = await line('listening')
    expect(store).toBe('redis')
    expect(await (await fetch(`${address}/ready`)).json()).toEqual({
      status: 'ready',
      store: { kind: 'redis', status: 'degraded' },
    })
    const problems = log.filter((text) => text.includes('store not reached'))
    expect(problems).toHaveLength(1)
    expect(problems[0]).toContain(`"problem":"connect ECONNREFUSED 127.0.0.1:${port}"`)
    expect(complaints()).toBe('')
  })

  it.each(['arguments as text', 'a user id'] as const)(
    'survives a request of a few KB that decompresses to 20 MB of brackets in %s',
    async (place) => {
      const provider = await serve((request, response) => {
        request.resume().once('end', () => response.end('{"choices":[]}'))
      })
      onTestFinished(() => provider.close())
      const env = { OPENAI_UPSTREAM_URL: provider.url, NODE_OPTIONS: '--max-old-space-size=192' }
      const { line } = launch(['--port', '0'], env)
      const { address } = await line('listening')
      const response = await fetch(`${address}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' },
        body: gzipSync(PLACES.chat[place]?.('['.repeat(20_000_000)) ?? ''),
      })
      expect(await response.json()).toEqual({ choices: [] })
      expect(response.headers.get('x-governor-verdict')).toBe('allow')
      expect(await get(`${address}/health`)).toBe(200)
    },
  )
})

/** A port that nothing listens on. The test chooses it because it can't read the address from a log that is not written. */
async function unusedPort(): Promise<number> {
  const other = await serve((_request, response) => response.end())
  await other.close()
  return Number(new URL(other.url).port)
}

describeWith('tmux', 'a Governor that a person starts on a terminal', () => {
  it('says where it listens, what it reads and where its page is, and at Ctrl-C what it did', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    writeFileSync(file, '{server: {port: 0}, budget: {max_iterations: 2}}')
    const pane = await openPane(150, 20, { OPENAI_UPSTREAM_URL: provider.url })
    await pane.enter(`node ${MAIN} start --config ${file}`)
    await pane.shows(`reads ${file}. Ctrl-C ends it.`)
    const screen = await pane.screen()
    const [, url = ''] = /listens on (\S+)/.exec(screen) ?? []
    expect(screen).toContain(`  page   ${url}/governor/`)
    expect(screen).toContain(`  agent  OPENAI_BASE_URL=${url}/v1 or ANTHROPIC_BASE_URL=${url}`)
    await runAgent(url, START, { max: 4 })
    await pane.press('C-c')
    await pane.shows(/^governor: 3 requests, 2 iterations, \S+ tokens, /m)
    await pane.shows(/^ +2 notices, 0 loops, 1 stop$/m)
    expect(await pane.screen()).not.toContain('"level"')
  })

  it('writes JSON lines if a level of the log is given', async () => {
    const pane = await openPane(500, 20)
    await pane.enter(`cd ${folder}; node ${MAIN} start --port 0 --log-level info`)
    await pane.shows('"msg":"listening"')
    await pane.press('C-c')
    await pane.shows(/"requests":0.*"msg":"stopped"/)
  })
})

describe('a started Governor whose log cannot be written', () => {
  it.skipIf(!existsSync('/dev/full'))(
    'serves requests and exits on SIGTERM as usual when the disk is full',
    async () => {
      const full = openSync('/dev/full', 'w')
      const port = await unusedPort()
      const child = spawn(process.execPath, [MAIN, 'start', '--port', String(port)], {
        cwd: folder,
        env: {},
        stdio: ['ignore', full, 'pipe'],
      })
      closeSync(full)
      onTestFinished(() => {
        child.kill('SIGKILL')
      })
      const ended = once(child, 'exit')
      await vi.waitFor(async () => expect(await get(`http://127.0.0.1:${port}/health`)).toBe(200), 10_000)
      child.kill('SIGTERM')
      expect(await ended).toEqual([0, null])
    },
  )

  it.each([
    ['stopped reading', (log: Readable) => log.removeAllListeners('data').pause()],
    ['is gone', (log: Readable) => log.destroy()],
  ])('serves requests and exits on SIGTERM as usual when the reader of its log %s', async (_, leave) => {
    const provider = await serve((_request, response) => response.end())
    onTestFinished(() => provider.close())
    const { child, line, exitCode } = launch(['--port', '0', '--upstream', provider.url])
    const { address } = await line('listening')
    const ended = once(child, 'exit')
    if (!child.stdout) throw new Error('no output')
    leave(child.stdout)
    // More than the pipe and the log buffer can hold.
    for (let at = 0; at < 150; at++) expect(await get(`${address}/v1/${'x'.repeat(10_000)}`)).toBe(200)
    child.kill('SIGTERM')
    expect(await ended).toEqual([0, null])
    child.stdout.resume()
    await exitCode
  })
})
