import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { describe, expect, it, onTestFinished } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import type { Terminal } from '../../src/cli/command.ts'
import { fitted } from '../../src/cli/terminal-text.ts'
import { listed } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { MAIN } from '../support/process.ts'
import { runaway, type Script, serve } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

const named = (name: string) => ({ headers: { 'x-governor-session': name } })

async function called(url: string, ...args: readonly string[]) {
  const terminal = captureTerminal()
  const code = await run([...args, '--url', url], terminal)
  return { code, printed: terminal.printed, complaints: terminal.complaints }
}

async function started(script: Script = runaway(), config: Record<string, unknown> = {}) {
  const both = await startBoth(script, { budget: { max_iterations: 10 }, ...config })
  await runAgent(both.url, START, { ...named('night job'), max: 9 })
  await runAgent(both.url, START, { ...named('calm job'), max: 1 })
  return both
}

describe('governor sessions', () => {
  it('lists sessions in lines of at most 80 columns, the highest risk first', async () => {
    const { url } = await started()
    const { code, printed } = await called(url, 'sessions')
    const lines = printed.trimEnd().split('\n')
    expect(code).toBe(0)
    expect(lines[0]).toMatch(/^SESSION +STATE +RISK +LIMIT +COST +\$\/MIN CLIENT +MODEL/)
    expect(lines[1]).toMatch(/^night job +near limit +90% +9\/10 .* node +gpt-test$/)
    expect(lines[2]).toMatch(/working +10% +1\/10/)
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(80)
    expect(printed).not.toContain('\u001b')
  })

  it('has room for names where its output goes into a pipe', async () => {
    const { url } = await startBoth(runaway())
    await runAgent(url, START, { headers: { ...named('fix the parser').headers, 'user-agent': 'my-agent/1' }, max: 1 })
    const { stdout } = await promisify(execFile)(process.execPath, [MAIN, 'sessions', '--url', url])
    expect(stdout).toMatch(/^fix the parser +working .* my-agent +gpt-test$/m)
  })

  it('begins with what is paused, as the table of top in a pipe does', async () => {
    const { url } = await started()
    await called(url, 'pause', '--reason', 'new prices')
    const lines = (await called(url, 'sessions')).printed
    expect(lines).toMatch(/^PAUSED: all agents, since \d\d:\d\d: new prices\nSESSION /)
    expect((await called(url, 'top')).printed).toBe(lines)
  })

  it('lists sessions as JSON lines with --json', async () => {
    const { url } = await started()
    const { printed } = await called(url, 'sessions', '--json')
    const rows = printed
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(rows).toMatchObject([{ iteration: 9 }, { iteration: 1 }])
  })

  it('shows, extends and stops a session by the start of its id or by its name', async () => {
    const { url } = await started()
    const [row] = (await called(url, 'sessions')).printed.split('\n').slice(1)
    const id = row?.split('  ')[0] ?? ''
    expect((await called(url, 'session', id)).printed).toMatch(
      /state: +near limit[\s\S]*iterations 9 of 10[\s\S]*warn warning/,
    )
    expect((await called(url, 'extend', 'night job', '50%')).printed).toMatch(/iteration 9 of 15 now/)
    expect((await called(url, 'extend', id, '5')).printed).toMatch(/iteration 9 of 20 now/)
    expect((await called(url, 'stop', id)).printed).toMatch(/its next request is the last/)
    expect((await called(url, 'sessions')).printed).toMatch(/stopping/)
  })

  it.each(['n'.repeat(201), `a job ${'of many words '.repeat(40)}`.trim(), 'Büro'])(
    'finds a session by its whole name where headers name it by a hash of that (%#)',
    async (name) => {
      const { url } = await startBoth(runaway())
      for (const one of ['other', name]) await runAgent(url, START, { ...named(one), max: 1 })
      for (const query of ['q', 'name']) {
        const found = await listed(url, `?${new URLSearchParams({ [query]: name })}`)
        expect(found.map(({ id }) => id)).toHaveLength(1)
        expect((await called(url, 'session', name)).printed).toContain(found[0]?.id)
      }
      expect(await called(url, 'pause', '--session', name)).toMatchObject({ code: 0, complaints: '' })
      expect((await called(url, 'stop', name)).printed).toMatch(/its next request is the last/)
    },
  )

  it('says that a session that an operator stopped stays stopped when its limits are raised', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 5 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    await called(url, 'stop', 'one')
    await callModel(url, messages, named('one'))
    expect((await called(url, 'extend', 'one', '2')).printed).toMatch(
      /iteration 2 of 7 now; an operator stopped it, so/,
    )
    await runAgent(url, START, { ...named('two'), max: 6 })
    expect((await called(url, 'extend', 'two', '2')).printed).toMatch(/iteration 5 of 7 now\n$/)
  })

  it('says what helps a session whose limit of a day is reached, as an extension does not', async () => {
    const { url } = await startBoth(runaway(), { budget: { day: { max_iterations: 2 } } })
    await runAgent(url, START, { ...named('one'), max: 3 })
    expect((await called(url, 'extend', 'one')).printed).toMatch(
      /now; today's limit ended it, and holds: governor budget/,
    )
  })

  it('takes a whole name for that session where the names of others begin with it', async () => {
    const { url } = await startBoth(runaway())
    for (const name of ['build-4', 'build-42', 'build-421']) await runAgent(url, START, { ...named(name), max: 1 })
    for (const name of ['build-4', 'build-42']) {
      expect((await called(url, 'session', name)).printed).toContain(`name:        ${name}\n`)
      expect(await called(url, 'stop', name)).toMatchObject({ code: 0, complaints: '' })
    }
    expect((await called(url, 'session', 'build-')).complaints).toContain('several sessions begin with build-')
    // Two clients may call a session so.
    await runAgent(url, START, { headers: { 'x-governor-session': 'build-4', authorization: 'Bearer two' }, max: 1 })
    expect((await called(url, 'session', 'build-4')).complaints).toContain('give more of the id')
  })

  it('reports each mistake in one line', async () => {
    const { url } = await started()
    expect(await called(url, 'stop', 'nobody')).toMatchObject({
      code: 1,
      complaints: expect.stringMatching(/^governor: no session begins with nobody.*\n$/),
    })
    expect(await called(url, 'stop', 's')).toMatchObject({
      code: 1,
      complaints: expect.stringContaining('give more of the id'),
    })
    expect(await called(url, 'extend', 'night job', 'much')).toMatchObject({
      code: 1,
      complaints: 'governor: by: expected a share above 0, such as "25%", or a number of iterations\n',
    })
    expect(await called(url, 'extend', 'night job', '0')).toMatchObject({
      code: 1,
      complaints: 'governor: by: expected 1 or more\n',
    })
    expect(await called('http://127.0.0.1:1', 'top')).toMatchObject({
      code: 1,
      complaints: expect.stringContaining('no Governor answers'),
    })
    expect(await called('nonsense', 'top')).toMatchObject({
      code: 1,
      complaints: expect.stringContaining('expected an address'),
    })
    expect((await called(url, 'stop')).code).toBe(2)
    expect((await called(url, 'sessions', 'x')).code).toBe(2)
  })

  it('says that another server is no Governor', async () => {
    const other = await serve((_, response) => response.end('{"status":"ok"}'))
    onTestFinished(other.close)
    const missing = { sessions: 'sessions', top: 'sessions', 'stop x': 'sessions', pause: 'paused', resume: 'paused' }
    for (const [typed, key] of Object.entries({ ...missing, budget: 'budget', 'budget day 30': 'max' }))
      expect(await called(other.url, ...typed.split(' '))).toMatchObject({
        code: 1,
        complaints: `governor: ${other.url} is no Governor: its answer has no ${key}\n`,
      })
    const provider = await serve((_, response) => response.writeHead(404).end('{"error":{"message":"no such path"}}'))
    onTestFinished(provider.close)
    expect(await called(provider.url, 'sessions')).toMatchObject({
      code: 1,
      complaints: `governor: ${provider.url} answered with 404: is it a Governor?\n`,
    })
  })

  it('shows a state that this version does not know by its name', async () => {
    const { url } = await started(runaway())
    const list = await (await fetch(`${url}/governor/sessions`)).text()
    const newer = await serve((_, response) => response.end(list.replace(/"state":"\w+"/g, '"state":"being_reviewed"')))
    onTestFinished(newer.close)
    expect(await called(newer.url, 'top')).toMatchObject({
      code: 0,
      printed: expect.stringContaining('being reviewed'),
    })
  })

  it('sends the token that is set in GOVERNOR_ADMIN_TOKEN', async () => {
    const { url } = await started(runaway(), { ops: { admin_token: 'secret', trust_loopback: false } })
    expect(await called(url, 'sessions')).toMatchObject({
      code: 1,
      complaints: expect.stringContaining('refuses'),
    })
    const terminal = captureTerminal({ env: { GOVERNOR_ADMIN_TOKEN: 'secret' } })
    expect(await run(['session', 'night job', '--url', url], terminal)).toBe(0)
    expect(terminal.printed).toContain('night job')
  })

  it.each([78, 80, 120])('says in %i columns why a run was stopped, in lines that fit', async (columns) => {
    const script: Script = ({ json }) =>
      json.tool_choice === 'none' ? { text: 'No.' } : { calls: [{ name: 'search_'.repeat(20), arguments: {} }] }
    const { url } = await startBoth(script, { budget: { max_iterations: 2 } })
    await runAgent(url, START, named('a job with a name of many words'))
    const terminal = captureTerminal({ columns })
    await run(['sessions', '--url', url], terminal)
    const lines = terminal.printed.trimEnd().split('\n')
    expect(lines[1]).toMatch(/ stopped: iterations +/)
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(columns)
  })

  it.each([
    '\u001b[31mred',
    'a\u0000b',
    'x'.repeat(10_240),
    '\u202egnp.exe',
    '<img onerror=alert(1)>',
    '目录'.repeat(90),
  ])('shows a tool named %j without control characters and within its line', async (tool) => {
    const { url } = await started(() => ({ calls: [{ name: tool, arguments: {} }] }))
    const { printed } = await called(url, 'sessions')
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not be there
    expect(printed).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u202e]/)
    expect(printed.split('\n')).toHaveLength(4)
    for (const line of printed.split('\n')) expect(line.length).toBeLessThanOrEqual(80)
  })

  it.each([
    ['abc', 5],
    ['abcdefgh', 5],
    ['目录目录', 5],
    ['e\u0301e\u0301', 3],
    ['', 2],
  ])('shortens %j to %i columns', (text, columns) => {
    const width = [...fitted(text, columns)].reduce(
      (sum, one) => sum + (/[\u2e80-\uffff]/.test(one) ? 2 : /\p{M}/u.test(one) ? 0 : 1),
      0,
    )
    expect(width).toBeLessThanOrEqual(columns)
    expect(width).toBeGreaterThanOrEqual(columns - 1)
  })
})

describe('governor top', () => {
  it('shows a run that waits for an operator, and extends it', async () => {
    const { url, until } = await startBoth(runaway(), {
      budget: { max_iterations: 3 },
      stop: { mode: 'ask', ask_timeout: '10m' },
    })
    const { messages } = await runAgent(url, START, { ...named('night job'), max: 3 })
    const answer = callModel(url, messages, named('night job'))
    await until(({ kind }) => kind === 'operator_asked')
    expect((await called(url, 'top')).printed).toMatch(/night job +asks: 3 → 4\? +100% +3\/3/)
    expect((await called(url, 'session', 'night job')).printed).toMatch(
      /state: +asks[\s\S]*asking: +limit of 3 iterations reached: extend or stop within 10 min/,
    )
    expect((await called(url, 'extend', 'night job', '1')).code).toBe(0)
    expect((await answer).headers.get('x-governor-iteration')).toBe('4/4')
  })

  it('names the limit that is asked about as people write it', async () => {
    const { url, until } = await startBoth(runaway(), {
      models: [{ model: '*', price: { input: 5_000, output: 0 } }],
      budget: { run: { max_cost_usd: 0.5 } },
      stop: { mode: 'ask', ask_timeout: '10m' },
    })
    const { messages } = await runAgent(url, START, { ...named('night job'), max: 1 })
    const answer = callModel(url, messages, named('night job'))
    await until(({ kind }) => kind === 'operator_asked')
    expect((await called(url, 'session', 'night job')).printed).toMatch(/asking: +limit of \$0\.50 reached: extend/)
    await called(url, 'stop', 'night job')
    await answer
  })

  it('prints the table once when its output is not a terminal', async () => {
    const { url } = await started()
    const { code, printed } = await called(url, 'top')
    expect(code).toBe(0)
    expect(printed.trimEnd().split('\n')).toHaveLength(3)
  })

  it('shows, inspects, extends and stops sessions by keys, and restores the screen at the end', async () => {
    const { url } = await started()
    let press: (key: string) => void = () => undefined
    const captured = captureTerminal({ isInteractive: true, env: { NO_COLOR: '1' } })
    const terminal: Terminal = Object.assign(Object.create(captured) as Terminal, {
      columns: 80,
      rows: 12,
      onKey: (handle: (key: string) => void) => {
        press = handle
        return () => undefined
      },
    })
    let from = 0
    const shows = async (text: string | RegExp) => {
      await expect.poll(() => captured.printed.slice(from)).toMatch(text)
      from = captured.printed.length
    }
    const over = run(['top', '--url', url], terminal)
    await shows(/> night job +near limit/)
    press('j')
    await shows(/> calm job +working/)
    press('s')
    await shows('by cost')
    press('j')
    press('i')
    await shows('iterations 9 of 10')
    press('\u001b')
    press('e')
    await shows('extend night job: 10 → 13? (y/n, or a number)')
    press('y')
    await shows('9/13')
    press('x')
    await shows('(y/n)')
    press('n')
    press('x')
    press('y')
    await shows('stopping')
    press('q')
    expect(await over).toBe(0)
    expect(captured.printed.endsWith('\u001b[?25h\u001b[?1049l')).toBe(true)
  })
})

describe('governor session ID --transcript', () => {
  const on = { sessions: { transcript: true }, budget: { max_iterations: 2 } }

  it('prints what was said, by whom and when, and how the run ended', async () => {
    const { url } = await startBoth(runaway('search', 'I found\ntwo things.'), on)
    await runAgent(url, START, named('one'))
    const { code, printed } = await called(url, 'session', 'one', '--transcript')
    expect(code).toBe(0)
    expect(printed).toMatch(
      /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d agent 1 user\n {2}Find out everything\.\n\n[\d: -]+ agent 1 assistant \(ended: tool_limit_reached\)\n {2}I found\n {2}two things\.\n$/,
    )
    const { printed: json } = await called(url, 'session', 'one', '--transcript', '--json')
    expect(JSON.parse(json)).toMatchObject({ entries: [{ role: 'user' }, { text: 'I found\ntwo things.' }] })
  })

  it('lets no text steer the terminal', async () => {
    const hostile = '\u001b]0;title\u0007\u001b[2J\u0000\u009b31m\u202egnp\r\u2066x'
    const { url } = await startBoth(runaway('search', `I found ${hostile}`), on)
    await runAgent(url, [{ role: 'user', content: `Find ${hostile}` }], named('one'))
    const { printed } = await called(url, 'session', 'one', '--transcript')
    expect(printed).toContain('I found ·]0;title··[2J··31m·gnp ·x')
    expect(printed).not.toMatch(/[^\n\P{C}]/u)
  })

  it.each([
    [['sessions']],
    [['session', 'one']],
    [['session', 'one', '--transcript']],
    [['stop', 'one']],
    [['extend', 'one']],
  ])('prints %j as JSON that a terminal shows as it is', async (args) => {
    const hostile = '\u001b[2J\u0000\u009b31m\u202egnp\u2066x\u2028\ufeff\u{e0041}\ud800目录'
    const { url } = await startBoth(() => ({ calls: [{ name: hostile, arguments: {} }] }), on)
    const options = { ...named('one'), body: { model: hostile }, max: 2 }
    await runAgent(url, [{ role: 'user', content: hostile }], options)
    const { printed } = await called(url, ...args, '--json')
    expect(printed).not.toMatch(/[^\n\P{C}]|[\u2028\u2029]/u)
    expect(JSON.stringify(JSON.parse(printed))).toContain('\u202egnp')
  })

  it('says which option keeps transcripts while it is off', async () => {
    const { url } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    expect(await called(url, 'session', 'one', '--transcript')).toMatchObject({
      code: 1,
      complaints: expect.stringContaining('sessions.transcript: true'),
    })
    expect((await called(url, 'sessions', '--transcript')).code).toBe(2)
  })
})
