/** `governor run -- COMMAND`: the built program, with programs of its own. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { MAIN, temporaryFolder } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { runaway, startProvider } from '../support/provider.ts'
import { mayCall } from '../support/scripts.ts'
import { openPane } from '../support/tmux.ts'

/** Starts `governor run` with these arguments, and collects what it prints. */
function governorRun(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
  cwd: string = temporaryFolder(),
) {
  const child = spawn(process.execPath, [MAIN, 'run', ...args], {
    cwd,
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

function agentFile(program = AGENT): string {
  const file = join(temporaryFolder(), 'agent.mjs')
  writeFileSync(file, program)
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
    // On a terminal the second line is not there.
    expect(printed.err).toMatch(
      /^governor: listens for (\S+) at http:\/\/127\.0\.0\.1:\d+, page http:\S+\/governor\/\ngovernor: guards \1\ngovernor: 6 /,
    )
    expect(printed.err).toMatch(
      /\ngovernor: 6 requests, 5 iterations, [\d.]+k? tokens, \$0\.\d{4}\n {10}\d notices, \d loops?, 1 stop\n {10}node · task: stopped at 5 of 5 iterations, with an answer\n$/,
    )
  })

  it('has in its bill the iterations of its session, where a request failed first and where one ended in a loop', async () => {
    let failed = false
    const provider = await startProvider((request, number) => {
      if (number === 2 && !failed) {
        failed = true
        return { status: 503 }
      }
      return mayCall(request) ? { calls: [{ name: 'search', arguments: { query: 'the same' } }] } : { text: 'No.' }
    })
    onTestFinished(() => provider.close())
    const again = `async function ask(...of) {
  const response = await fetch(...of)
  return response.status === 503 ? fetch(...of) : response
}
${AGENT.replace('await fetch', 'await ask').replace('String(left)', '"nothing"')}`
    const ended = governorRun(['--', process.execPath, agentFile(again)], { OPENAI_BASE_URL: `${provider.url}/v1` })
    expect(await ended.ended).toBe(7)
    expect(ended.printed.out).toBe('loop_detected\n')
    const [, requests, iterations] = /\ngovernor: (\d+) requests, (\d+) iterations, /.exec(ended.printed.err) ?? []
    expect(Number(iterations)).toBe(Number(requests) - 1)
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
    expect(printed.err).not.toContain('governor: guards')
    expect(printed.err).toMatch(
      / was not guarded: no request of it that Governor guards came through\n {10}docs\/clients.md says what it has to be told\n$/,
    )
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

  it.each(['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const)(
    'gets %s and decides itself how it ends',
    async (signal) => {
      const script = `process.on('${signal}', () => process.exit(3)); console.log('ready'); setInterval(() => {}, 1000)`
      const { child, ended } = governorRun(['--', process.execPath, '-e', script])
      await once(child.stdout, 'data')
      child.kill(signal)
      expect(await ended).toBe(3)
    },
  )

  it('that a signal kills ends with the exit code of a shell, and one that is not there with 127', async () => {
    const { ended } = governorRun(['--', process.execPath, '-e', 'process.kill(process.pid, "SIGKILL")'])
    expect(await ended).toBe(137)
    const missing = governorRun(['--', 'no-such-command'])
    expect(await missing.ended).toBe(127)
    expect(missing.printed.err).toContain('governor: no-such-command: no such command\n')
    const folder = governorRun(['--', import.meta.dirname])
    expect(await folder.ended).toBe(126)
    expect(folder.printed.err).toContain(`governor: ${import.meta.dirname}: no program, or no permission to run it`)
    expect(missing.printed.err).not.toContain('was not guarded')
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
    const text = (...names) => { try { return readFileSync(join(process.env.HOME, ...names), 'utf8') } catch { return '' } }
    const home = (...names) => JSON.parse(text(...names) || '{}')
    const after = (name) => args[args.indexOf(name) + 1]
    const ask = (base, path) => fetch(base + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: 'Bearer k', ...(path === '/v1/messages' && { 'anthropic-version': '2023-06-01' }) },
      body: JSON.stringify({ model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'Hi' }], input: 'Hi', tools: [{ name: 'a', input_schema: {} }] }),
    })
    const programs = {
      async claude() {
        const given = args.includes('--settings') ? JSON.parse(after('--settings')).env : {}
        const { ANTHROPIC_BASE_URL: base } = { ...process.env, ...home('.claude', 'settings.json').env, ...given }
        await ask(base, '/v1/messages')
      },
      async codex() {
        const given = args[0] === '-c' ? /^openai_base_url="(.+)"$/.exec(args[1])?.[1] : undefined
        await ask(given ?? /openai_base_url = "(.+)"/.exec(text('.codex', 'config.toml'))[1], '/responses')
      },
      copilot: () => ask(process.env.COPILOT_PROVIDER_BASE_URL, '/chat/completions'),
      async opencode() {
        const given = JSON.parse(process.env.OPENCODE_CONFIG_CONTENT ?? '{}')
        if (given.theme !== 'mine' || given.provider.openai.options.timeout !== 5) process.exit(4)
        const { options } = home('.config', 'opencode', 'opencode.json').provider.openai
        await ask({ ...options, ...given.provider.openai.options }.baseURL, '/chat/completions')
      },
      async pi() {
        const providers = home('.pi', 'agent', 'models.json').providers
        const extension = args.includes('-e') ? (await import(after('-e'))).default : () => {}
        extension({ registerProvider: (name, more) => { providers[name] = { ...providers[name], ...more } } })
        await ask(providers.anthropic.baseUrl, '/v1/messages')
      },
      async qwen() {
        const { modelProviders, env } = home('.qwen', 'settings.json')
        await ask(modelProviders?.openai[0].baseUrl ?? process.env.OPENAI_BASE_URL ?? env.OPENAI_BASE_URL, '/chat/completions')
      },
      async gemini() {
        const [, own] = /^GOOGLE_GEMINI_BASE_URL=(.+)/.exec(text('.gemini', '.env'))
        await ask(process.env.GOOGLE_GEMINI_BASE_URL ?? own, '/v1beta/models/gemini-2.5-pro:generateContent')
      },
      cn: () => ask(/apiBase: (.+)/.exec(text('.continue', 'config.yaml'))[1], '/chat/completions'),
      cline: () => ask(home('.cline', 'data', 'settings', 'providers.json').providers.mine.settings.baseUrl, '/chat/completions'),
    }
    programs[basename(process.argv[1])]().catch(() => process.exit(3))
  `

  /** Starts a stand-in of an agent whose own files are these, under `governor run`. */
  function runStandIn(name: string, files: Readonly<Record<string, string>>, env: Readonly<Record<string, string>>) {
    const home = temporaryFolder()
    for (const [path, text] of Object.entries({ ...files, [name]: STAND_IN })) {
      mkdirSync(dirname(join(home, path)), { recursive: true })
      writeFileSync(join(home, path), text)
    }
    chmodSync(join(home, name), 0o755)
    return governorRun(['--', join(home, name)], { HOME: home, ...env })
  }

  /** A file of each agent that leads it to an address. */
  const FILES: Readonly<Record<string, (url: string) => Readonly<Record<string, string>>>> = {
    claude: (url) => ({ '.claude/settings.json': JSON.stringify({ env: { ANTHROPIC_BASE_URL: url } }) }),
    codex: (url) => ({ '.codex/config.toml': `model = "gpt-5"\nopenai_base_url = "${url}/v1"\n` }),
    copilot: () => ({}),
    opencode: (url) => ({
      '.config/opencode/opencode.json': JSON.stringify({ provider: { openai: { options: { baseURL: `${url}/v1` } } } }),
    }),
    pi: (url) => ({ '.pi/agent/models.json': JSON.stringify({ providers: { anthropic: { baseUrl: url } } }) }),
    qwen: (url) => ({ '.qwen/settings.json': JSON.stringify({ env: { OPENAI_BASE_URL: `${url}/v1` } }) }),
    gemini: (url) => ({ '.gemini/.env': `GOOGLE_GEMINI_BASE_URL=${url}\n` }),
  }

  it.each(Object.keys(FILES))('is guarded though its own settings name another address: %s', async (name) => {
    const provider = await startProvider(() => ({ text: 'Hello.' }))
    onTestFinished(() => provider.close())
    const elsewhere = 'http://127.0.0.1:1'
    const mine = { theme: 'mine', provider: { openai: { options: { timeout: 5, baseURL: elsewhere } } } }
    const { ended, printed } = runStandIn(name, FILES[name]?.(elsewhere) ?? {}, {
      OPENAI_UPSTREAM_URL: provider.url,
      ANTHROPIC_UPSTREAM_URL: provider.url,
      GEMINI_UPSTREAM_URL: provider.url,
      COPILOT_PROVIDER_BASE_URL: elsewhere,
      OPENCODE_CONFIG_CONTENT: JSON.stringify(mine),
    })
    expect(await ended, printed.err).toBe(0)
    expect(printed.err).toMatch(/\ngovernor: guards \S+\ngovernor: 1 request, /)
    expect(printed.err).not.toContain('was not guarded')
    expect(provider.requests).toHaveLength(1)
  })

  it.each(['claude', 'codex', 'opencode', 'pi', 'qwen', 'gemini'])(
    'goes through Governor to the address that its own settings name: %s',
    async (name) => {
      const provider = await startProvider(() => ({ text: 'Hello.' }))
      onTestFinished(() => provider.close())
      const { ended, printed } = runStandIn(name, FILES[name]?.(provider.url) ?? {}, {
        OPENCODE_CONFIG_CONTENT: JSON.stringify({ theme: 'mine', provider: { openai: { options: { timeout: 5 } } } }),
      })
      expect(await ended, printed.err).toBe(0)
      expect(printed.err).toMatch(/\ngovernor: guards \S+\ngovernor: 1 request, /)
      expect(provider.requests).toHaveLength(1)
    },
  )

  it.each<[string, (file: string) => Readonly<Record<string, string>>]>([
    ['the settings in its variable', (file) => ({ OPENCODE_CONFIG_CONTENT: readFileSync(file, 'utf8') })],
    ['the file that its variable names', (file) => ({ OPENCODE_CONFIG: file })],
  ])('goes through Governor to the address in %s: opencode', async (_, env) => {
    const provider = await startProvider(() => ({ text: 'Hello.' }))
    onTestFinished(() => provider.close())
    const own = (baseURL: string) => ({ theme: 'mine', provider: { openai: { options: { timeout: 5, baseURL } } } })
    const file = join(temporaryFolder(), 'mine.json')
    writeFileSync(file, JSON.stringify(own(`${provider.url}/v1`)))
    const { ended, printed } = runStandIn('opencode', FILES['opencode']?.('http://127.0.0.1:1') ?? {}, {
      OPENCODE_CONFIG_CONTENT: JSON.stringify({ theme: 'mine', provider: { openai: { options: { timeout: 5 } } } }),
      ...env(file),
    })
    expect(await ended, printed.err).toBe(0)
    expect(printed.err).toMatch(/\ngovernor: guards \S+\ngovernor: 1 request, /)
    expect(provider.requests).toHaveLength(1)
  })

  it.each([
    ['of its folder before those of its home', (url: string) => ({ ANTHROPIC_BASE_URL: url })],
    [
      'though another setting has it, too',
      (url: string) => ({ ANTHROPIC_BEDROCK_BASE_URL: url, ANTHROPIC_BASE_URL: url, CLAUDE_BASE_URL: url }),
    ],
  ])('goes through Governor to the address in the files %s', async (_, env) => {
    const provider = await startProvider(() => ({ text: 'Hello.' }))
    onTestFinished(() => provider.close())
    const home = temporaryFolder()
    const folder = temporaryFolder()
    const write = (path: string, text: string) => {
      mkdirSync(dirname(path), { recursive: true })
      writeFileSync(path, text)
    }
    write(join(home, '.claude/settings.json'), JSON.stringify({ env: { ANTHROPIC_BASE_URL: 'http://127.0.0.1:1' } }))
    write(join(folder, '.claude/settings.json'), JSON.stringify({ env: env(provider.url) }))
    write(join(home, 'claude'), STAND_IN)
    chmodSync(join(home, 'claude'), 0o755)
    const { ended, printed } = governorRun(['--', join(home, 'claude')], { HOME: home }, folder)
    expect(await ended, printed.err).toBe(0)
    expect(provider.requests).toHaveLength(1)
  })

  it.each<[string, string, (url: string) => string]>([
    [
      'qwen',
      '.qwen/settings.json',
      (url) => JSON.stringify({ modelProviders: { openai: [{ id: 'm', baseUrl: `${url}/v1` }] } }),
    ],
    ['cn', '.continue/config.yaml', (url) => `models:\n  - name: m\n    apiBase: ${url}/v1\n`],
    [
      'cline',
      '.cline/data/settings/providers.json',
      (url) => JSON.stringify({ providers: { mine: { settings: { baseUrl: `${url}/v1` } } } }),
    ],
  ])(
    'that no flag and no variable leads to Governor is told which line of its own does: %s',
    async (name, path, text) => {
      const provider = await startProvider(() => ({ text: 'Hello.' }))
      onTestFinished(() => provider.close())
      const { ended, printed } = runStandIn(name, { [path]: text(provider.url) }, {})
      expect(await ended, printed.err).toBe(0)
      expect(provider.requests).toHaveLength(1)
      expect(printed.err).not.toContain('governor: guards')
      const own = `${provider.url}/v1`
      expect(printed.err).toMatch(/was not guarded: no request of it that Governor guards came through\n/)
      expect(printed.err).toContain(
        `          ~/${path} leads it to ${own}: write http://127.0.0.1:8787/v1 there, and use governor run --port 8787 --upstream ${own}\n`,
      )
    },
  )

  it('that a file of its own leads to the usual port of Governor is told to run it there', async () => {
    const text = 'models:\n  - name: m\n    apiBase: http://127.0.0.1:8787/v1\n'
    const { ended, printed } = runStandIn('cn', { '.continue/config.yaml': text }, { PORT: '8787' })
    await ended
    expect(printed.err).toContain(
      '          ~/.continue/config.yaml leads it to http://127.0.0.1:8787/v1: use governor run --port 8787\n',
    )
  })

  it.each([
    ['claude', 'unset CLAUDE_CODE_USE_BEDROCK and CLAUDE_CODE_USE_VERTEX'],
    ['copilot', 'set COPILOT_MODEL and COPILOT_PROVIDER_API_KEY'],
    ['gemini', 'set GEMINI_API_KEY'],
  ])('is told what it needs if its requests do not come and no file says why: %s', async (name, says) => {
    const file = join(temporaryFolder(), name)
    writeFileSync(file, '#!/bin/sh\n')
    chmodSync(file, 0o755)
    const { ended, printed } = governorRun(['--', file])
    expect(await ended).toBe(0)
    expect(printed.err).toContain(`          ${says}`)
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

describeWith('tmux', 'governor run on a terminal', () => {
  it('leaves the screen to the program until it ends; then the bill names each stop with its reason, and what was not guarded in red', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const agent = join(temporaryFolder(), 'agent.mjs')
    const spoken = AGENT.replace('if (governor) {', 'console.log("said", message.content)\n  if (governor) {')
    writeFileSync(agent, spoken)
    const pane = await openPane(200, 40, { OPENAI_BASE_URL: `${provider.url}/v1` })
    await pane.enter(`clear; node ${MAIN} run --max-iterations 3 -- node ${agent}`)
    await pane.shows('with an answer')
    const lines = (await pane.screen()).split('\n').map((line) => line.trimEnd())
    const own = lines.findIndex((line) => line.startsWith('governor: listens for node at http://127.0.0.1:'))
    const bill = lines.findIndex((line) => line.startsWith('governor: 4 requests, 3 iterations, '))
    const between = lines.slice(own + 1, bill)
    expect(between.filter((line) => line.startsWith('said '))).toHaveLength(4)
    expect(between.join('\n')).toContain(' stopped by governor: 3 of 3 iterations')
    expect(between.at(-1)).toBe('tool_limit_reached')
    expect(between.join('\n')).not.toMatch(/^governor:|\d\d:\d\d /m)
    expect(lines.slice(bill + 1, bill + 3)).toEqual([
      expect.stringMatching(/^ {10}\d notices, \d loops?, 1 stop$/),
      '          node · task: stopped at 3 of 3 iterations, with an answer',
    ])
    await pane.enter(`clear; node ${MAIN} run -- true`)
    await pane.shows('true was not guarded')
    expect(await pane.screen(true)).toContain('[31mtrue was not guarded: no request of it')
  })
})
