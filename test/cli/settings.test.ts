/** Flags and variables of the common settings, with the built program. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { loadConfig } from '../../src/config/load.ts'
import { callModel, START } from '../support/agent.ts'
import { launch } from '../support/process.ts'
import { runaway, startProvider } from '../support/provider.ts'

const twice = (one: string, other: string) => ['--upstream', one, '--upstream', other]

type Env = Readonly<Record<string, string>>

async function providerFor() {
  const provider = await startProvider(runaway())
  onTestFinished(() => provider.close())
  return provider
}

async function firstHeaders(url: string) {
  const { headers } = await callModel(url, [...START, { role: 'user', content: 'What is new?' }])
  return headers
}

describe('a Governor that gets its settings without a file', () => {
  it.each<[string, readonly string[], Env]>([
    ['flags', ['--max-iterations', '7', '--store', 'memory'], { REDIS_URL: 'redis://127.0.0.1:1' }],
    ['variables', [], { GOVERNOR_MAX_ITERATIONS: '7', GOVERNOR_STORE: 'memory', REDIS_URL: 'redis://127.0.0.1:1' }],
    ['a flag and another value in the variable', ['--max-iterations', '7'], { GOVERNOR_MAX_ITERATIONS: '9' }],
  ])('takes the limit on iterations and the store from %s', async (_, args, env) => {
    const provider = await providerFor()
    const { line } = launch(['--port', '0', '--upstream', provider.url, ...args], env)
    const started = await line('listening')
    expect(started).toMatchObject({ store: 'memory', max_iterations: 7 })
    const headers = await firstHeaders(String(started['address']))
    expect(headers.get('x-governor-iteration')).toBe('1/7')
  })

  it.each([
    ['flag', ['--max-tool-calls', '1', '--observe'], {}],
    ['variable', [], { GOVERNOR_MAX_TOOL_CALLS: '1', GOVERNOR_OBSERVE: 'true' }],
  ] as const)('only observes with the %s, and keeps to its other limits', async (_, args, env) => {
    const provider = await providerFor()
    const { line } = launch(['--port', '0', ...args], { ...env, GOVERNOR_UPSTREAM: provider.url })
    const url = String((await line('listening'))['address'])
    const history = [
      ...START,
      { role: 'user', content: 'What is new?' },
      {
        role: 'assistant',
        tool_calls: [{ id: 'a', type: 'function', function: { name: 'search', arguments: '{}' } }],
      },
      { role: 'tool', tool_call_id: 'a', content: 'nothing' },
    ] as const
    const { headers } = await callModel(url, history as never)
    expect(headers.get('x-governor-observed')).toBe('stop')
  })

  it('sends an upstream that has an address of its own there, whatever stands before it', async () => {
    const upstream = ['openai=http://127.0.0.1:1', 'http://127.0.0.1:2']
    for (const given of [upstream, upstream.toReversed()]) {
      const { upstreams } = loadConfig({ upstream: given }, {}).config
      expect([upstreams['openai']?.url, upstreams['gemini']?.url]).toEqual(upstream.map((text) => text.slice(-18)))
    }
  })

  it.each<[readonly string[], Env, string]>([
    [['--max-cost', 'five'], {}, '--max-cost: budget.run.max_cost_usd: found "five": expected a number'],
    [['--max-tokens', '-1'], {}, '--max-tokens: budget.run.max_tokens: found -1'],
    [[], { GOVERNOR_MAX_SECONDS: 'soon' }, 'GOVERNOR_MAX_SECONDS: budget.run.max_seconds: found "soon"'],
    [[], { GOVERNOR_OBSERVE: 'perhaps' }, 'GOVERNOR_OBSERVE: mode: found "perhaps": expected one of 0, 1, true, on,'],
    [[], { GOVERNOR_UPSTREAM: 'here' }, 'GOVERNOR_UPSTREAM: found "here": expected an http'],
    [['--upstream', 'here'], {}, '--upstream: found "here": expected an http'],
    [['--upstream', 'a=here'], {}, '--upstream: found "a=here": expected an http'],
    [
      ['--upstream', 'a=http://me:secret@127.0.0.1'],
      {},
      '--upstream: found "a=http://…@127.0.0.1": expected a URL without',
    ],
    [['--upstream', 'health=http://127.0.0.1'], {}, '--upstream: found "health=http://127.0.0.1": reserved for Gov'],
    [twice('a=http://127.0.0.1:1', 'a=http://127.0.0.1:2'), {}, '--upstream: a is given twice: keep one'],
    [twice('http://127.0.0.1:1', 'http://127.0.0.1:2'), {}, '--upstream: the address of all upstreams is given twice'],
  ])('does not start with %j and %j, and names once what is wrong', async (args, env, says) => {
    const program = launch(args, env)
    expect(await program.exitCode).toBe(2)
    expect(program.complaints()).toContain(says)
    expect(program.complaints().trimEnd().split('\n')).toHaveLength(2)
  })
})
