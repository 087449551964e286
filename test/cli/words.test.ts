/** What people type that is not quite right: the answer does what they mean, or says what to type. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { jsonSchema } from '../../scripts/documents.ts'
import { run } from '../../src/cli/cli.ts'
import { ConfigError, checkConfig, type Environment, loadConfig } from '../../src/config/load.ts'
import { SETTINGS } from '../../src/config/settings.ts'
import { temporaryFolder } from '../support/process.ts'
import { captureTerminal } from '../support/terminal.ts'

async function governor(args: readonly string[], env: Environment = {}) {
  const terminal = captureTerminal({ env })
  const code = await run(args, terminal)
  return { code, out: terminal.printed, err: terminal.complaints }
}

function fileWith(text: string): string {
  const file = join(temporaryFolder(), 'governor.yaml')
  writeFileSync(file, text)
  return file
}

const LETTERS = 'abcdefghijklmnopqrstuvwxyz'

/** A name with one mistake: a letter too many, too few, another one, or two that changed places. */
function mistyped(name: string) {
  return fc
    .record({
      kind: fc.constantFrom('added', 'left out', 'replaced', 'swapped'),
      at: fc.nat(name.length - 2),
      letter: fc.constantFrom(...LETTERS),
    })
    .map(({ kind, at, letter }) => {
      const before = name.slice(0, at + 1)
      const after = name.slice(at + 1)
      if (kind === 'added') return before + letter + after
      if (kind === 'left out') return before + after.slice(1)
      if (kind === 'replaced') return before + letter + after.slice(1)
      return name.slice(0, at) + after.slice(0, 1) + name.slice(at, at + 1) + after.slice(1)
    })
}

/** True if no more letters lie between what was typed and the suggested name than between it and the name. */
function isNearer(suggested: string, name: string, typed: string): boolean {
  const distance = (one: string) => {
    let row = [...Array(one.length + 1).keys()]
    for (let i = 1; i <= typed.length; i++) {
      const next = [i]
      for (let j = 1; j <= one.length; j++)
        next[j] = Math.min(
          (next[j - 1] ?? 0) + 1,
          (row[j] ?? 0) + 1,
          (row[j - 1] ?? 0) + (typed[i - 1] === one[j - 1] ? 0 : 1),
        )
      row = next
    }
    return row[one.length] ?? 0
  }
  return distance(suggested) <= distance(name)
}

interface Node {
  readonly properties?: Readonly<Record<string, Node>>
}

/** Every key of the configuration that stands in a section, with its path; of the sections themselves as well. */
function keysOf({ properties = {} }: Node, path: readonly string[] = []): (readonly string[])[] {
  return Object.entries(properties).flatMap(([key, node]) => [[...path, key], ...keysOf(node, [...path, key])])
}

const HELP = (await governor(['--help'])).out
const COMMANDS = [
  ...HELP.slice(HELP.indexOf('\nCommands'), HELP.indexOf('\nFlags')).matchAll(/^ {2}([a-z][a-z-]+) /gm),
].map(([, name = '']) => name)
const FLAGS = [...HELP.matchAll(/^ {2}(--[a-z-]+)/gm)].map(([, name = '']) => name)
const KEYS = keysOf(jsonSchema() as Node)

describe('a typo is answered with the name that was meant', () => {
  it('finds all commands, flags and keys to try', () => {
    expect([COMMANDS.length, FLAGS.length, KEYS.length].map((found) => found > 17)).toEqual([true, true, true])
  })

  it.each(COMMANDS)('in a command: %s', async (name) => {
    await fc.assert(
      fc.asyncProperty(mistyped(name), async (typed) => {
        fc.pre(typed !== 'help' && !COMMANDS.includes(typed))
        const { code, err } = await governor([typed])
        const [, said = ''] = /^governor: there is no command \S+: did you mean (\S+)\? --help shows/.exec(err) ?? []
        expect(code).toBe(2)
        expect(COMMANDS).toContain(said)
        expect(isNearer(said, name, typed), `${typed}: ${said}`).toBe(true)
      }),
      { numRuns: 8 },
    )
  })

  it.each(FLAGS)('in a flag: %s', async (name) => {
    await fc.assert(
      fc.asyncProperty(mistyped(name.slice(2)), async (word) => {
        const typed = `--${word}`
        fc.pre(/^\w[\w-]*$/.test(word) && !FLAGS.includes(typed))
        const { code, err } = await governor(['start', typed])
        const [, said = ''] = /^governor: Unknown option '\S+': did you mean (\S+)\? --help shows/.exec(err) ?? []
        expect(code).toBe(2)
        expect(FLAGS).toContain(said)
        expect(isNearer(said, name, typed), `${typed}: ${said}`).toBe(true)
      }),
      { numRuns: 8 },
    )
  })

  it.each(KEYS.map((path) => path.join('.')))('in a key: %s', (joined) => {
    const path = joined.split('.')
    const name = path.at(-1) ?? ''
    const section = path.slice(0, -1)
    fc.assert(
      fc.property(mistyped(name), (typed) => {
        fc.pre(!KEYS.some((one) => one.at(-1) === typed))
        const tree = section.reduceRight<object>((inner, key) => ({ [key]: inner }), { [typed]: 1 })
        let message = ''
        try {
          checkConfig(structuredClone(tree) as never, 'file')
        } catch (error) {
          message = error instanceof ConfigError ? error.message : String(error)
        }
        const [, said = ''] = new RegExp(`\\.?${typed}: unknown key: .*: did you mean (\\S+)\\?`).exec(message) ?? []
        expect(said, message).not.toBe('')
        expect(isNearer(said, name, typed), `${typed}: ${said}`).toBe(true)
      }),
      { numRuns: 4 },
    )
  })

  it('in a key that is also the name of a key in another section', () => {
    const problem = (tree: object) => () => checkConfig(tree as never, 'file')
    expect(problem({ upstream: 1 })).toThrow('did you mean upstreams?')
    expect(problem({ max_iterations: 1 })).toThrow('did you mean budget.max_iterations?')
  })

  it('in a value that is one of a few words', () => {
    expect(() => checkConfig({ mode: 'obsreve' }, 'file')).toThrow('one of enforce, observe: did you mean observe?')
  })

  it.each([
    ['max_cost_usd', { budget: { max_cost_usd: 5 } }, 'run.max_cost_usd'],
    ['max_iterations', { max_iterations: 5 }, 'budget.max_iterations'],
  ])('that stands in the section above its own: %s', (_, tree, path) => {
    expect(() => checkConfig(structuredClone(tree), 'file')).toThrow(`: did you mean ${path}?`)
  })

  it.each([
    ['budget.max_iterations', 'budget: { max_iterations: … }'],
    ['budget.run.max_cost_usd', 'budget: { run: { max_cost_usd: … } }'],
  ])('that is written as its path: %s', (path, written) => {
    expect(() => checkConfig({ [path]: 5 }, 'file')).toThrow(`, log: write ${written}`)
  })

  it('and nothing is proposed where no name is near', async () => {
    expect((await governor(['juggle'])).err).toBe(
      'governor: there is no command juggle: --help shows the commands and flags\n',
    )
    expect(() => checkConfig({ retries: 3 }, 'file')).toThrow(/, log$/)
  })
})

/** Upstreams at which nothing listens. */
const NOWHERE = ['openai', 'anthropic', 'gemini'].flatMap((name) => ['--upstream', `${name}=http://127.0.0.1:9`])

describe('a switch', () => {
  const ON = [
    '--observe',
    '--observe=true',
    '--observe true',
    '--observe yes',
    '--observe=on',
    '--observe 1',
    '--observe True',
  ]
  const OFF = ['--observe false', '--observe=false', '--observe no', '--observe off', '--observe 0', '--no-observe']

  it.each([...ON.map((typed) => [typed, true] as const), ...OFF.map((typed) => [typed, false] as const)])(
    'is set as its words say: %s',
    async (typed, isOn) => {
      const { out } = await governor(['doctor', ...typed.split(' '), '--config', fileWith(''), ...NOWHERE])
      expect(out.includes('it only counts')).toBe(isOn)
    },
  )

  it.each([
    ['no', 'enforce'],
    ['off', 'enforce'],
    ['yes', 'observe'],
    ['on', 'observe'],
    ['True', 'observe'],
    ['FALSE', 'enforce'],
  ])('has the same words in its variable: %s', (word, mode) => {
    expect(loadConfig({}, { GOVERNOR_OBSERVE: word }).config.mode).toBe(mode)
  })

  it('is not read behind the -- of run', async () => {
    const { err } = await governor(['run', '--', 'no-such-program', '--observe', 'false'])
    expect(err).toContain('no-such-program: no such command')
  })
})

describe('check-config', () => {
  it('takes the file as an argument too', async () => {
    const file = fileWith('budget: { max_iterations: 5 }')
    expect(await governor(['check-config', file])).toEqual({ code: 0, out: `${file}: valid\n`, err: '' })
    expect((await governor(['start', file])).err).toContain(`: did you mean --config ${file}? --help`)
  })

  it('names an address for other machines as wrong where Governor holds a key that needs no access key', async () => {
    const openai = { url: 'http://127.0.0.1:9', api_key: 'sk-held' }
    const server = { host: '0.0.0.0', port: 8787 }
    const checked = (config: object) => governor(['check-config', fileWith(JSON.stringify(config))])
    const { code, err } = await checked({ server, upstreams: { openai } })
    expect(code).toBe(2)
    expect(err).toContain('server.host: found 0.0.0.0: anybody who reaches this address can use the upstream keys')
    expect(err).not.toContain('sk-held')
    for (const fine of [
      { server: { ...server, access_keys: ['a-key-of-mine'] }, upstreams: { openai } },
      { server: { host: 'localhost' }, upstreams: { openai } },
      { server },
    ])
      expect(await checked(fine)).toMatchObject({ code: 0, err: '' })
  })
})

describe('amounts', () => {
  it.each([
    ['10m', 600],
    ['"90s"', 90],
    ['1.5h', 5400],
    ['600', 600],
    ['0.5', 0.5],
  ])('of time are seconds, or written with a unit: %s', (text, seconds) => {
    const config = fileWith(`budget: { run: { max_seconds: ${text} } }`)
    expect(loadConfig({ config }, {}).config.budget.run.max_seconds).toBe(seconds)
    expect(loadConfig({ 'max-seconds': text.replaceAll('"', '') }, {}).config.budget.run.max_seconds).toBe(seconds)
  })

  it.each([
    ['"$5"', 5],
    ['$0.25', 0.25],
    ['5 USD', 5],
    ['7', 7],
    ['0', 0],
  ])('of dollars may have their sign: %s', (text, dollars) => {
    const config = fileWith(`budget: { run: { max_cost_usd: ${text} }, day: { max_cost_usd: ${text} } }`)
    const { budget } = loadConfig({ config }, {}).config
    expect([budget.run.max_cost_usd, budget.day]).toMatchObject([dollars, { max_cost_usd: dollars }])
    const byVariable = loadConfig({}, { GOVERNOR_MAX_COST: text.replaceAll('"', '') }).config
    expect(byVariable.budget.run.max_cost_usd).toBe(dollars)
  })

  it.each([
    ['max_seconds', '10 minutes', 'expected a number of seconds, or a length of time such as 90s, 10m or 2h'],
    ['max_seconds', -1, 'expected at least 0'],
    ['max_cost_usd', '€5', 'expected a number of dollars of 0 or more, such as 5, 0.25 or "$5"'],
    ['max_cost_usd', -1, 'expected at least 0'],
  ])('that are none are answered with what to write: %s: %s', (key, value, says) => {
    expect(() => checkConfig({ budget: { run: { [key]: value } } }, 'file')).toThrow(says)
  })
})

describe('--help after a command', () => {
  it.each(COMMANDS)('prints its own help, and only its flags: %s', async (name) => {
    const { code, out, err } = await governor([name, '--help'])
    expect([code, err]).toEqual([0, ''])
    expect(out).toMatch(new RegExp(`^Usage: governor ${name}\\b`))
    expect(out).not.toContain('\nCommands\n')
    expect(await governor(['help', name])).toEqual({ code, out, err })
    for (const [, flag = ''] of out.matchAll(/^ {2}--([a-z-]+)/gm)) expect(FLAGS).toContain(`--${flag}`)
  })

  it.each(COMMANDS)('refuses every flag that its own help does not name: %s', async (name) => {
    const { out } = await governor([name, '--help'])
    const named = [...out.matchAll(/--[a-z-]+/g)].map(([flag]) => flag)
    const others = [...HELP.matchAll(/^ {2}(--[a-z-]+)( [A-Z]+)?/gm)].filter(
      ([, flag = '']) => !['--version', '--observe', '--footer', ...named].includes(flag),
    )
    for (const [, flag = '', value] of others) {
      const args = /^Usage: governor \S+ [A-Z]/.test(out) ? ['x'] : []
      const given = await governor([name, value ? `${flag}=x` : flag, ...args, ...(name === 'run' ? ['--', 'x'] : [])])
      expect(given).toMatchObject({ code: 2, out: '' })
      expect(given.err).toMatch(new RegExp(`^governor: ${flag} is for [a-z, -]+: --help shows`))
    }
  })

  it('names the flags of settings that the command reads, and refuses others', async () => {
    expect((await governor(['report', '--help'])).out).toMatch(/--config FILE[\s\S]+--journal FILE/)
    expect((await governor(['replay', '--help'])).out).toMatch(/--config FILE[\s\S]+--observe/)
    const { code, err } = await governor(['init', '--yes', '--max-cost', '3'])
    expect(code).toBe(2)
    expect(err).toContain('--max-cost is for start, doctor, run, check-config: --help shows')
    const inRun = await governor(['run', '--workers', '2', '--', 'true'])
    expect(inRun.err).toContain('--workers is for start, doctor, check-config: --help shows')
  })

  it('leaves room between a name with its value and what it means', () => {
    for (const { flag = '', value = '' } of SETTINGS)
      if (flag) expect(HELP).toMatch(new RegExp(`^ {2}--${`${flag} ${value}`.trimEnd()}(?: {2}|$)`, 'm'))
    expect(HELP).toContain('  budget [SCOPE LIMIT [SUBJECT]]\n')
  })

  it('names what the command takes', async () => {
    const { out } = await governor(['stop', '--help'])
    expect(out).toContain('Usage: governor stop ID\n\nits next request gets an honest last answer\n')
    expect(out).toContain('--json')
    expect(out).not.toContain('--max-iterations')
    expect((await governor(['run', '--help'])).out).toContain('Usage: governor run [flags] -- COMMAND…')
  })
})
