/** Compares what the documentation shows with what the program accepts. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parse } from 'yaml'
import { run } from '../../src/cli/cli.ts'
import { checkConfig, loadConfig } from '../../src/config/load.ts'
import { PATTERNS } from '../../src/core/loop/patterns.ts'
import { createMetrics } from '../../src/telemetry/metrics.ts'
import { captureTerminal } from '../support/terminal.ts'

const documents = readdirSync('docs').filter((name) => name.endsWith('.md'))
const files = ['README.md', 'CONTRIBUTING.md', ...documents.map((name) => join('docs', name))]
const pages = files.map((file) => ({ file, text: readFileSync(file, 'utf8') }))

/** Everything that a pattern's first group finds, with the page that contains it. */
function found(pattern: RegExp, texts = pages): { file: string; what: string }[] {
  return texts.flatMap(({ file, text }) => [...text.matchAll(pattern)].map(([, what = '']) => ({ file, what })))
}

describe('the documentation', () => {
  it('shows only settings that the configuration accepts', () => {
    const settings = [
      ...found(/^ *```yaml\n([\s\S]*?)^ *```$/gm),
      ...found(/`((?:budget|loop_guard|overflow|overrides|models|stop|server|upstreams): [^`]*)`/g),
    ]
    expect(settings.length).toBeGreaterThan(10)
    for (const { file, what } of settings) {
      expect(() => checkConfig(parse(what), `${file}: ${what}`)).not.toThrow()
    }
  })

  it.each([
    ['$20 a day on my laptop', { day: [{ max_cost_usd: 20 }] }],
    [
      '$5 a day for each of ten people',
      {
        day: [
          { per: 'key', max_cost_usd: 5 },
          { per: 'all', max_cost_usd: 40 },
        ],
      },
    ],
    [
      'Over night',
      {
        max_iterations: 100,
        run: { max_cost_usd: 10, max_seconds: 2_700 },
        session: { max_iterations: 1_500, max_cost_usd: 200, max_agents: 20 },
      },
    ],
    ['CI job', { max_iterations: 60, run: { max_cost_usd: 2 }, day: [{ max_cost_usd: 50 }] }],
  ])('has a recipe "%s" that check-config accepts, and that sets what its title says', async (title, budget) => {
    const recipes = readFileSync('docs/recipes.md', 'utf8')
    const from = recipes.indexOf(`\n## ${title}\n`)
    expect(from).toBeGreaterThan(0)
    const recipe = recipes.slice(from + 1).split('\n## ')[0] ?? ''
    const file = join(mkdtempSync(join(tmpdir(), 'governor-')), 'governor.yaml')
    onTestFinished(() => rmSync(dirname(file), { recursive: true }))
    const [, yaml = '{}'] = /^```yaml\n([\s\S]*?)^```$/m.exec(recipe) ?? []
    writeFileSync(file, yaml)
    // A recipe without a file is a command line.
    const [, flags = ''] = yaml === '{}' ? (/`governor run (--[^`]*) -- /.exec(recipe) ?? []) : []
    const terminal = captureTerminal()
    expect(await run(['check-config', '--config', file, ...flags.split(' ').filter(Boolean)], terminal)).toBe(0)
    const typed = Object.fromEntries([...flags.matchAll(/--(\S+) (\S+)/g)].map(([, name = '', value]) => [name, value]))
    const { config } = loadConfig({ config: file, ...typed }, {})
    const list = <One>(day: One | One[]) => (Array.isArray(day) ? day : [day])
    const { day } = config.budget
    expect({ ...config.budget, day: day && list(day) }).toMatchObject(budget)
  })

  it('shows only commands that exist, all of them by the name governor', async () => {
    const terminal = captureTerminal()
    await run(['--help'], terminal)
    const commands = [...terminal.printed.matchAll(/^ {2}([a-z-]+) /gm)].map(([, name = '']) => name)
    expect(commands).toContain('check-config')
    const all = [
      ...pages,
      { file: '--help', text: terminal.printed },
      { file: 'config/governor.yaml', text: readFileSync('config/governor.yaml', 'utf8') },
    ]
    const named = found(/(?:^|`)governor ([a-z-]+)/gm, all)
    expect(named.length).toBeGreaterThan(20)
    expect(named.filter(({ what }) => !commands.includes(what))).toEqual([])
    expect(found(/((?:npx governor|npm start --|npx agent-governor) [a-z-]+)/g, pages)).toEqual([])
    const { scripts } = JSON.parse(readFileSync('package.json', 'utf8'))
    expect(found(/npm run ([a-z:-]+)/g).filter(({ what }) => !(what in scripts))).toEqual([])
  })

  it('names every metric of Governor and no other', async () => {
    const { text } = await createMetrics({ sessions: 0, openRequests: 0, isStoreUp: true, pauses: 0 }).render()
    const metrics = new Set([...text.matchAll(/^# TYPE (governor_\w+)/gm)].map(([, name]) => name))
    const table = pages.filter(({ file }) => file.endsWith('metrics.md'))
    const rows = found(/`(governor_\w+)/g, table).map(({ what }) => what)
    expect(new Set(rows)).toEqual(metrics)
    expect(found(/`(governor_\w+_\w+)/g).filter(({ what }) => !metrics.has(what))).toEqual([])
  })

  it('explains every loop pattern', () => {
    const rows = found(/^\| `(\w+)` \| /gm, [{ file: 'docs/loops.md', text: readFileSync('docs/loops.md', 'utf8') }])
    expect(rows.map(({ what }) => what)).toEqual(Object.keys(PATTERNS))
  })

  it('begins with a README of at most 170 lines', () => {
    expect(readFileSync('README.md', 'utf8').split('\n').length).toBeLessThanOrEqual(170)
  })

  it('has no comment behind a command, which zsh, the shell of macOS, takes for arguments', () => {
    const blocks = found(/^ *```(?:sh|bash)\n([\s\S]*?)^ *```/gm)
    const commented = blocks.filter(({ what }) => /^[^#\n]+\s#/m.test(what))
    expect(blocks.length).toBeGreaterThan(10)
    expect(commented).toEqual([])
  })

  it('links only to files that exist', () => {
    const missing = found(/\]\((?!https?:|#)([^)#]+)/g).filter(
      ({ file, what }) => !existsSync(join(dirname(file), what)),
    )
    expect(missing).toEqual([])
  })
})
