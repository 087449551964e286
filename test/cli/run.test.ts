/** `governor run -- COMMAND`: the built program, with programs of its own. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { MAIN, temporaryFolder } from '../support/process.ts'
import { runaway, startProvider } from '../support/provider.ts'

/** Starts `governor run` with these arguments, and collects what it prints. */
function governorRun(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const child = spawn(process.execPath, [MAIN, 'run', ...args], {
    cwd: temporaryFolder(),
    env: { PATH: process.env['PATH'] ?? '', ...env },
  })
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  const printed = { out: '', err: '' }
  child.stdout.on('data', (data) => {
    printed.out += data
  })
  child.stderr.on('data', (data) => {
    printed.err += data
  })
  return { child, printed, ended: once(child, 'close').then(([code]) => code as number) }
}

/** An agent of a few lines that goes on until it is told to stop, and prints the end. */
const AGENT = `
const messages = [{ role: 'user', content: 'What is new?' }]
for (let left = 20; left > 0; left--) {
  const response = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer sk-test', 'x-governor-session': 'task' },
    body: JSON.stringify({ model: 'gpt-4o', messages, tools: [{ type: 'function', function: { name: 'search' } }] }),
  })
  const { choices: [{ message }], governor } = await response.json()
  if (governor) { console.log(governor.terminal_state); break }
  messages.push(message, ...(message.tool_calls ?? []).map(({ id }) => ({ role: 'tool', tool_call_id: id, content: String(left) })))
}
process.exit(7)
`

function agentFile(): string {
  const file = join(temporaryFolder(), 'agent.mjs')
  writeFileSync(file, AGENT)
  return file
}

describe('a program that governor run guards', () => {
  it('reaches its provider through Governor, which says at the end what it used and passes its exit code on', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const base = { OPENAI_BASE_URL: `${provider.url}/v1` }
    const { ended, printed } = governorRun(['--max-iterations', '5', '--', process.execPath, agentFile()], base)
    expect(await ended).toBe(7)
    expect(printed.out).toBe('tool_limit_reached\n')
    expect(printed.err).toMatch(/^governor: guards \S+ at http:\/\/127\.0\.0\.1:\d+, page http:\S+\/governor\/\n/)
    expect(printed.err).toMatch(
      /\ngovernor: 6 requests, 5 iterations, [\d.]+k? tokens, \$0\.\d{4}\n {10}\d notices, \d loops?, 1 stop\n {10}node · task: stopped at 5 of 5 iterations, with an answer\n$/,
    )
  })

  it.each([
    [[], {}, true],
    [[], { GOVERNOR_FOOTER: 'false' }, false],
  ] as const)(
    'reads at the end of its last answer why it ended, unless that is off (%j, %j)',
    async (flags, env, isOn) => {
      const provider = await startProvider(runaway())
      onTestFinished(() => provider.close())
      const agent = join(temporaryFolder(), 'agent.mjs')
      writeFileSync(agent, AGENT.replace('console.log(governor.terminal_state)', 'console.log(message.content)'))
      const given = { OPENAI_BASE_URL: `${provider.url}/v1`, ...env }
      const { ended, printed } = governorRun([...flags, '--max-iterations', '2', '--', process.execPath, agent], given)
      expect(await ended).toBe(7)
      expect(printed.out.includes('— stopped by governor: 2 of 2 iterations')).toBe(isOn)
    },
  )

  it('is told at the start and at the end that Governor only observes, and what it would have done', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const env = { OPENAI_BASE_URL: `${provider.url}/v1`, GOVERNOR_OBSERVE: '1' }
    const { ended, printed } = governorRun(['--max-iterations', '5', '--', process.execPath, agentFile()], env)
    expect(await ended).toBe(7)
    expect(printed.err).toContain('\n  mode   observe (GOVERNOR_OBSERVE): it only counts')
    expect(printed.err).toMatch(/0 stops\n {10}only observed: would have stopped 1\n$/)
  })

  it('gets the variables of both APIs, and no proxy for this machine', async () => {
    const script = `const { OPENAI_BASE_URL: o, ANTHROPIC_BASE_URL: a, NO_PROXY: n } = process.env; console.log([o, a, n].join(' '))`
    const { ended, printed } = governorRun(['--', process.execPath, '-e', script], {
      NO_PROXY: 'example.org',
    })
    expect(await ended).toBe(0)
    expect(printed.out).toMatch(/^(http:\/\/127\.0\.0\.1:\d+)\/v1 \1 example\.org,127\.0\.0\.1,localhost\n$/)
    expect(printed.err).toContain('was not guarded: no request of it that Governor guards came through')
  })

  it('is told of requests that failed, too', async () => {
    const script = `await fetch(process.env.OPENAI_BASE_URL + '/models')`
    const { ended, printed } = governorRun(['--', process.execPath, '--input-type=module', '-e', script], {
      OPENAI_BASE_URL: 'http://127.0.0.1:9/v1',
    })
    expect(await ended).toBe(0)
    expect(printed.err).toContain('governor: 1 request, 0 iterations')
    expect(printed.err).not.toContain('sent no request')
  })

  it.each(['SIGTERM', 'SIGINT', 'SIGHUP'] as const)('gets %s and decides itself how it ends', async (signal) => {
    const script = `process.on('${signal}', () => process.exit(3)); console.log('ready'); setInterval(() => {}, 1000)`
    const { child, ended } = governorRun(['--', process.execPath, '-e', script])
    await once(child.stdout, 'data')
    child.kill(signal)
    expect(await ended).toBe(3)
  })

  it('that a signal kills ends with the exit code of a shell, and one that is not there with 127', async () => {
    const { ended } = governorRun(['--', process.execPath, '-e', 'process.kill(process.pid, "SIGKILL")'])
    expect(await ended).toBe(137)
    const missing = governorRun(['--', 'no-such-command'])
    expect(await missing.ended).toBe(127)
    expect(missing.printed.err).toContain('governor: no-such-command: no such command\n')
  })

  it('that does not read the variables is told on its command line', async () => {
    const file = join(temporaryFolder(), 'codex')
    writeFileSync(file, '#!/bin/sh\necho "$@"\n')
    chmodSync(file, 0o755)
    const { ended, printed } = governorRun(['--', file, 'exec', '--json'])
    expect(await ended).toBe(0)
    expect(printed.out).toMatch(/^-c openai_base_url="http:\/\/127\.0\.0\.1:\d+\/v1" exec --json\n$/)
  })

  /** A stand-in that reads the same places as the program itself, in its order, and asks where these lead. */
  const STAND_IN = `#!${process.execPath}
    const { readFileSync } = require('node:fs')
    const { basename, join } = require('node:path')
    const args = process.argv.slice(2)
    const home = (...names) => { try { return JSON.parse(readFileSync(join(process.env.HOME, ...names), 'utf8')) } catch { return {} } }
    const after = (name) => args[args.indexOf(name) + 1]
    const ask = (base, path) => fetch(base + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: 'Bearer k', 'anthropic-version': '2023-06-01' },
      body: JSON.stringify({ model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'Hi' }], tools: [{ name: 'a', input_schema: {} }] }),
    })
    const programs = {
      async claude() {
        const given = args.includes('--settings') ? JSON.parse(after('--settings')).env : {}
        const { ANTHROPIC_BASE_URL: base } = { ...process.env, ...home('.claude', 'settings.json').env, ...given }
        await ask(base, '/v1/messages')
      },
      copilot: () => ask(process.env.COPILOT_PROVIDER_BASE_URL, '/chat/completions'),
      async pi() {
        const providers = home('.pi', 'agent', 'models.json').providers
        const extension = args.includes('-e') ? (await import(after('-e'))).default : () => {}
        extension({ registerProvider: (name, more) => { providers[name] = { ...providers[name], ...more } } })
        await ask(providers.anthropic.baseUrl, '/v1/messages')
      },
    }
    programs[basename(process.argv[1])]().catch(() => process.exit(3))
  `

  it.each(['claude', 'copilot', 'pi'])('is guarded though its own settings name another address: %s', async (name) => {
    const provider = await startProvider(() => ({ text: 'Hello.' }))
    onTestFinished(() => provider.close())
    const home = temporaryFolder()
    const elsewhere = 'http://127.0.0.1:1'
    mkdirSync(join(home, '.claude'))
    writeFileSync(join(home, '.claude/settings.json'), JSON.stringify({ env: { ANTHROPIC_BASE_URL: elsewhere } }))
    mkdirSync(join(home, '.pi/agent'), { recursive: true })
    const providers = { anthropic: { baseUrl: elsewhere }, openai: { baseUrl: elsewhere } }
    writeFileSync(join(home, '.pi/agent/models.json'), JSON.stringify({ providers }))
    const file = join(home, name)
    writeFileSync(file, STAND_IN)
    chmodSync(file, 0o755)
    const upstreams = { OPENAI_UPSTREAM_URL: provider.url, ANTHROPIC_UPSTREAM_URL: provider.url }
    const env = { ...upstreams, HOME: home, COPILOT_PROVIDER_BASE_URL: elsewhere }
    const { ended, printed } = governorRun(['--', file], env)
    expect(await ended, printed.err).toBe(0)
    expect(printed.err).toContain('\ngovernor: 1 request, 1 iteration')
    expect(printed.err).not.toContain('was not guarded')
    expect(provider.requests).toHaveLength(1)
  })

  it.each(['--settings', '--settings='])('keeps the settings that its user gives it: claude %s', async (flag) => {
    const file = join(temporaryFolder(), 'claude')
    writeFileSync(file, '#!/bin/sh\necho "$@"\n')
    chmodSync(file, 0o755)
    const own = JSON.stringify({ model: 'opus', env: { A: '1' } })
    const { ended, printed } = governorRun([
      '--',
      file,
      ...(flag.endsWith('=') ? [flag + own] : [flag, own]),
      '-p',
      'x',
    ])
    expect(await ended).toBe(0)
    const [, settings = '', rest] = /^--settings (\{.*\}) (.*)\n$/.exec(printed.out) ?? []
    const url = expect.stringMatching(/^http:\/\/127\.0\.0\.1:\d+$/)
    expect(JSON.parse(settings)).toEqual({ model: 'opus', env: { A: '1', ANTHROPIC_BASE_URL: url } })
    expect(rest).toBe('-p x')
  })

  it.each([
    [['claude', '-p', 'x'], "governor: Unknown option '-p': run needs -- before the command: --help"],
    [['--'], 'governor: run needs a command after --, such as run -- claude: --help'],
  ])('is not started by run %j', async (args, says) => {
    const { ended, printed } = governorRun(args)
    expect(await ended).toBe(2)
    expect(printed.err).toContain(says)
  })
})
