/** The alerts and the dashboard that come with Governor: each metric and label in them exists. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { describe, expect, it, vi } from 'vitest'
import { parse } from 'yaml'
import { createMetrics } from '../../src/telemetry/metrics.ts'
import { describeWith } from '../support/programs.ts'

const CONFIG = join(import.meta.dirname, '..', '..', 'config')
const read = (name: string) => readFileSync(join(CONFIG, name), 'utf8')

interface Alerts {
  readonly groups: readonly { readonly rules: readonly { readonly alert: string; readonly expr: string }[] }[]
}

interface Dashboard {
  readonly panels: readonly {
    readonly title: string
    readonly targets: readonly { readonly expr: string }[]
  }[]
}

const ALERTS = (parse(read('prometheus/alerts.yml')) as Alerts).groups.flatMap(({ rules }) =>
  rules.map(({ alert, expr }) => [`the alert ${alert}`, expr] as const),
)
const PANELS = (JSON.parse(read('grafana/dashboard.json')) as Dashboard).panels.flatMap(({ title, targets }) =>
  targets.map(({ expr }) => [`the panel “${title}”`, expr] as const),
)

/** The labels of each metric, as docs/metrics.md lists them, which another test holds equal to the program. */
const DOCUMENTED = new Map(
  [...readFileSync(join(CONFIG, '..', 'docs', 'metrics.md'), 'utf8').matchAll(/`(governor_\w+)(?:\{([^}]*)\})?`/g)].map(
    ([, name = '', labels = '']) => [name, labels.split(',')],
  ),
)

describe('the monitoring configuration', () => {
  it.each([...ALERTS, ...PANELS])('of %s uses only metrics and labels that exist: %s', async (_, expr) => {
    const { text } = await createMetrics({ sessions: 0, openRequests: 0, isStoreUp: true, pauses: 0 }).render()
    const names = expr.match(/\bgovernor_\w+/g) ?? []
    for (const name of names.map((one) => one.replace(/_(?:bucket|count)$/, ''))) {
      expect(text).toContain(`# HELP ${name} `)
      const labels = DOCUMENTED.get(name) ?? []
      const [, given = ''] = new RegExp(`${name}(?:_bucket|_count)?\\{([^}]*)\\}`).exec(expr) ?? []
      for (const [, label] of given.matchAll(/(\w+)(?:=|!=|=~)/g)) expect(labels).toContain(label)
    }
    const used = [...expr.matchAll(/\bby \(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(/, */))
    const known = names.flatMap((name) => DOCUMENTED.get(name.replace(/_(?:bucket|count)$/, '')) ?? [])
    for (const label of used.filter((one) => one !== 'le')) expect(known).toContain(label)
  })
})

describe('the metrics of one of many Governors in a process', () => {
  it('are forgotten when it has ended', async () => {
    const ended = new WeakRef({ sessions: 0, openRequests: 0, isStoreUp: true, pauses: 0 })
    createMetrics(ended.deref() as Parameters<typeof createMetrics>[0])
    setFlagsFromString('--expose-gc')
    const collect: () => void = runInNewContext('gc')
    await vi.waitFor(() => {
      collect()
      // The error of a check of the object itself would keep it.
      expect(ended.deref() === undefined).toBe(true)
    }, 20_000)
  })

  it('have those of the process in each', async () => {
    for (const levels of [1, 2].map((sessions) => ({ sessions, openRequests: 0, isStoreUp: true, pauses: 0 }))) {
      const { text } = await createMetrics(levels).render()
      expect(text).toContain(`governor_sessions ${levels.sessions}\n`)
      expect(text).toMatch(/^process_cpu_user_seconds_total [\d.]+$/m)
    }
  })
})

describe('the cost by model', () => {
  it('has the first 100 models by name, as clients choose the names, and all others as one', async () => {
    const metrics = createMetrics({ sessions: 0, openRequests: 0, isStoreUp: true, pauses: 0 })
    for (let at = 0; at < 150; at++)
      metrics.record({
        ...{ kind: 'answered', upstream: 'openai', model: `model-${at}`, client: undefined, thread: 1 },
        ...{ isNewRun: true, iteration: 1, counts: {} },
        usage: { input: 1, output: 1, cost: 0.5, estimated: false },
      })
    const { text } = await metrics.render()
    expect(text.match(/^governor_cost_usd_total\{/gm)).toHaveLength(101)
    expect(text).toContain('governor_cost_usd_total{upstream="openai",model="other"} 25\n')
  })

  it('can be chosen on the dashboard', () => {
    const { templating, panels } = JSON.parse(read('grafana/dashboard.json'))
    expect(templating.list).toMatchObject([
      {
        name: 'model',
        definition: 'label_values(governor_cost_usd_total, model)',
        multi: true,
        includeAll: true,
      },
    ])
    const chosen = (panels as Dashboard['panels']).filter(({ targets }) =>
      targets.some(({ expr }) => expr.includes('model=~"$model"')),
    )
    expect(chosen.map(({ title }) => title)).toEqual(['Dollars a minute', 'Cost by model'])
  })
})

describeWith(['promtool'], 'Prometheus', (promtool) => {
  it.each(['check rules alerts.yml', 'test rules alerts.test.yml'])(
    'accepts the rules of Governor and fires each alert in time: %s',
    (command) => {
      const { status, stdout, stderr } = spawnSync(promtool, command.split(' '), {
        cwd: join(CONFIG, 'prometheus'),
        encoding: 'utf8',
      })
      expect({ status, output: stdout + stderr }).toMatchObject({ status: 0 })
    },
  )
})
