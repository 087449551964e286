/** Several processes behind one port, as real processes on a real Redis. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished, vi } from 'vitest'
import { launch, type Program, startProcess, temporaryFolder } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { freePort, startRedis } from '../support/redis.ts'

const TOOLS = [{ type: 'function', function: { name: 'search', parameters: { type: 'object' } } }]

/** Sends the request of iteration `number` of a session on a connection of its own. */
function ask(url: string, session: string, number: number, more: object = {}): Promise<Response> {
  const messages: object[] = [{ role: 'user', content: 'find it' }]
  for (let at = 1; at < number; at++) {
    const called = { name: 'search', arguments: JSON.stringify({ query: `q${at}` }) }
    messages.push({
      role: 'assistant',
      content: null,
      tool_calls: [{ id: `call_${at}`, type: 'function', function: called }],
    })
    messages.push({ role: 'tool', tool_call_id: `call_${at}`, content: `result ${at}` })
  }
  return fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', connection: 'close', 'x-governor-session': session },
    body: JSON.stringify({ model: 'gpt-5', tools: TOOLS, messages, ...more }),
  })
}

async function iterationOf(url: string, session: string, number: number): Promise<string | null> {
  const response = await ask(url, session, number)
  await response.arrayBuffer()
  return response.headers.get('x-governor-iteration')
}

/** The processes that a process has started. */
function childrenOf({ child: { pid } }: Program): number[] {
  const file = `/proc/${pid}/task/${pid}/children`
  return existsSync(file) ? readFileSync(file, 'utf8').split(' ').filter(Boolean).map(Number) : []
}

/** The sum of a counter over its labels, as one scrape shows it. */
async function total(url: string, name: string): Promise<number> {
  const text = await (await fetch(`${url}/metrics`, { headers: { connection: 'close' } })).text()
  const lines = text.split('\n').filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
  return lines.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0)
}

/** Which workers have written a log line with this message. */
function workersIn({ log }: Program, message: string): Set<unknown> {
  const lines = log.map((line) => JSON.parse(line) as Record<string, unknown>)
  return new Set(lines.filter(({ msg }) => msg === message).map(({ worker }) => worker))
}

async function startTwo(script: Script = runaway(), config: Record<string, unknown> = {}) {
  const provider = await startProvider(script)
  onTestFinished(() => provider.close())
  const redis = await startRedis()
  return startProcess(provider.url, { store: 'redis', redis: { url: redis.url }, server: { workers: 2 }, ...config })
}

it('does not start several processes that share no store, and says what they need', async () => {
  const program = launch(['--port', '0', '--workers', '2'])
  expect(await program.exitCode).toBe(2)
  expect(program.complaints()).toContain('--workers: server.workers: found 2: several processes share their sessions')
})

describeWith('redis-server', 'a Governor of two workers', () => {
  it('counts a session once over its workers, shows the sum of their metrics from each, and keeps one journal', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const governor = await startTwo(runaway(), { usage: { journal } })
    const seen: (string | null)[] = []
    for (let number = 1; number <= 6; number++) seen.push(await iterationOf(governor.url, 'one', number))
    expect(seen).toEqual([1, 2, 3, 4, 5, 6].map((number) => `${number}/300`))
    await vi.waitFor(() => expect(workersIn(governor, 'request').size).toBe(2), { timeout: 20_000 })
    for (let scrape = 0; scrape < 4; scrape++) expect(await total(governor.url, 'governor_requests_total')).toBe(6)
    expect(await total(governor.url, 'governor_sessions')).toBe(1)
    governor.child.kill('SIGTERM')
    expect(await governor.exitCode).toBe(0)
    const lines = readFileSync(journal, 'utf8').trim().split('\n')
    let iterations = 0
    for (const line of lines) iterations += (JSON.parse(line) as { readonly iterations: number }).iterations
    expect(iterations).toBe(6)
  })

  it('applies a changed file in every worker, also while they start, and keeps the one before where that is wrong', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const file = join(temporaryFolder(), 'governor.yaml')
    const write = (max: unknown) => {
      const upstreams = { openai: { url: provider.url } }
      const settings = { store: 'redis', redis: { url: redis.url }, server: { workers: 2, port: 0 } }
      writeFileSync(file, JSON.stringify({ upstreams, ...settings, budget: { max_iterations: max } }))
    }
    write(40)
    const program = launch(['--config', file])
    // The first worker serves already, and the other one starts.
    await program.line('store in use')
    write(50)
    program.child.kill('SIGHUP')
    const { address } = await program.line('listening')
    await vi.waitFor(() => expect(workersIn(program, 'policies reloaded').size).toBe(2), { timeout: 20_000 })
    const limits = async () => {
      const seen = new Set<string | undefined>()
      for (let at = 0; at < 4; at++) seen.add((await iterationOf(String(address), `s${at}`, 1))?.split('/')[1])
      return [...seen]
    }
    expect(await limits()).toEqual(['50'])
    write(70)
    program.child.kill('SIGHUP')
    await expect.poll(limits, { timeout: 20_000 }).toEqual(['70'])
    write('many')
    program.child.kill('SIGHUP')
    const kept = 'configuration not reloaded: the one before stays in force'
    await vi.waitFor(() => expect(workersIn(program, kept).size).toBe(2), { timeout: 20_000 })
    expect(await limits()).toEqual(['70'])
  })

  it('finishes the streams of all workers before it ends', async () => {
    let release = () => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    let asked = 0
    const governor = await startTwo(async () => {
      asked++
      await released
      return { text: 'a whole answer' }
    })
    const streams = [1, 2, 3, 4].map((at) => ask(governor.url, `s${at}`, 1, { stream: true }))
    await vi.waitFor(() => expect(asked).toBe(4), { timeout: 20_000 })
    governor.child.kill('SIGTERM')
    await governor.line('draining')
    release()
    for (const stream of streams) expect(await (await stream).text()).toMatch(/data: \[DONE\]\n\n$/)
    expect(await governor.exitCode).toBe(0)
    expect(await governor.line('stopped')).toMatchObject({ complete: true, guarded: 4 })
  })

  const WHOM = ['it alone', 'it and all workers, as a terminal and systemd do']
  it.each(WHOM)('finishes a stream if, while other workers start, a signal ends %s', async (whom) => {
    const redis = await startRedis()
    let release = () => {}
    const provider = await startProvider(async () => {
      await new Promise<void>((resolve) => (release = resolve))
      return { text: 'a whole answer' }
    })
    onTestFinished(() => provider.close())
    const port = await freePort()
    const env = { REDIS_URL: redis.url, OPENAI_UPSTREAM_URL: provider.url }
    const program = launch(['--workers', '4', '--port', String(port)], env)
    const url = `http://127.0.0.1:${port}`
    await vi.waitFor(async () => expect((await fetch(`${url}/health`)).status).toBe(200), { timeout: 20_000 })
    const stream = ask(url, 'one', 1, { stream: true })
    await vi.waitFor(() => expect(provider.requests).toHaveLength(1), { timeout: 20_000 })
    const workers = whom === 'it alone' ? [] : childrenOf(program)
    program.child.kill('SIGTERM')
    for (const worker of workers) process.kill(worker, 'SIGTERM')
    await program.line('draining')
    release()
    expect(await (await stream).text()).toMatch(/data: \[DONE\]\n\n$/)
    expect(await program.exitCode).toBe(0)
    expect(program.complaints()).toBe('')
  })

  it('replaces a worker that was killed, says so, and loses no count that was shown', async () => {
    const governor = await startTwo()
    for (let number = 1; number <= 4; number++) await iterationOf(governor.url, 'one', number)
    expect(await total(governor.url, 'governor_requests_total')).toBe(4)
    const [first = 0, second] = childrenOf(governor)
    process.kill(first, 'SIGKILL')
    expect(await governor.line('a worker has ended: another one takes its place')).toMatchObject({ signal: 'SIGKILL' })
    await vi.waitFor(() => expect(childrenOf(governor)).toEqual([second, expect.any(Number)]), { timeout: 20_000 })
    expect(await iterationOf(governor.url, 'one', 5)).toBe('5/300')
    expect(await total(governor.url, 'governor_requests_total')).toBe(5)
    // The new one takes connections too.
    await vi.waitFor(
      async () => {
        await iterationOf(governor.url, 'two', 1)
        expect(workersIn(governor, 'request').size).toBe(3)
      },
      { timeout: 20_000 },
    )
  })

  it('listens on the port that it has said also after all its workers were killed at once', async () => {
    const governor = await startTwo()
    for (const pid of childrenOf(governor)) process.kill(pid, 'SIGKILL')
    for (const _ of [1, 2]) await governor.line('a worker has ended: another one takes its place')
    const answered = () => iterationOf(governor.url, 'one', 1).catch(() => undefined)
    await vi.waitFor(async () => expect(await answered()).toBe('1/300'), { timeout: 20_000 })
  })
})
