/** A real Prometheus, started from the files that come with Governor, in front of a real Governor. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { parse } from 'yaml'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { runaway } from '../support/provider.ts'
import { freePort } from '../support/redis.ts'

const ROOT = join(import.meta.dirname, '..', '..')
const read = (name: string) => readFileSync(join(ROOT, name), 'utf8')

interface Compose {
  readonly services: {
    readonly prometheus: {
      readonly volumes: readonly string[]
      readonly configs: readonly { readonly source: string; readonly target: string }[]
    }
  }
  readonly configs: Readonly<Record<string, { readonly content: string }>>
}

/** Returns a value of docker-compose.yml as Compose reads it. */
function interpolated(text: string, env: Readonly<Record<string, string>>): string {
  return text.replace(/\$\{(\w+):-([^}]*)\}/g, (_, name: string, otherwise: string) => env[name] || otherwise)
}

/**
 * Makes the folder that the container of Prometheus has. Only addresses of the container and the time between two scrapes, which a test
 * can't wait for, are changed.
 */
function filesFor(governor: string, env: Readonly<Record<string, string>>): string {
  const folder = mkdtempSync(join(tmpdir(), 'governor-prometheus-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const { services, configs } = parse(read('docker-compose.yml'), { logLevel: 'error' }) as Compose
  const [mounted = ''] = services.prometheus.volumes
  cpSync(join(ROOT, mounted.split(':')[0] ?? ''), folder, { recursive: true })
  let text = read('config/prometheus/prometheus.yml')
    .replace('governor:8787', new URL(governor).host)
    .replace('scrape_interval: 15s', 'scrape_interval: 1s')
  for (const [at, { source, target }] of services.prometheus.configs.entries()) {
    const file = join(folder, `config-${at}`)
    writeFileSync(file, interpolated(configs[source]?.content ?? '', env))
    text = text.replaceAll(target, file)
  }
  writeFileSync(join(folder, 'prometheus.yml'), text)
  return folder
}

function end(child: ChildProcess): Promise<unknown> {
  child.kill('SIGKILL')
  return once(child, 'exit')
}

/** Starts Prometheus; returns a function that asks its API. */
async function startPrometheus(program: string, folder: string) {
  const address = `127.0.0.1:${await freePort()}`
  const child = spawn(
    program,
    [
      `--config.file=${join(folder, 'prometheus.yml')}`,
      `--storage.tsdb.path=${join(folder, 'data')}`,
      `--web.listen-address=${address}`,
    ],
    { stdio: 'ignore' },
  )
  onTestFinished(() => end(child).then(() => undefined))
  return async (path: string) => {
    const response = await fetch(`http://${address}/api/v1/${path}`).catch(() => undefined)
    return (await response?.json().catch(() => undefined)) as {
      status: string
      data: Record<string, unknown>
    }
  }
}

interface Target {
  readonly health: string
  readonly lastError: string
}

interface Group {
  readonly name: string
  readonly rules: readonly { readonly health: string }[]
}

describeWith(['prometheus'], 'Prometheus, started from the files of docker-compose.yml', (program) => {
  it.each([
    ['without a token', {}],
    ['with a token', { GOVERNOR_ADMIN_TOKEN: 'f00dfacef00dface' }],
  ])('reads the metrics and has all rules, and each query of the dashboard is valid (%s)', async (_, env) => {
    const { GOVERNOR_ADMIN_TOKEN: token } = env as Readonly<Record<string, string>>
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 3 },
      models: [{ model: 'gpt-test', price: { input: 1_000, output: 10_000 } }],
      ops: { trust_loopback: false, ...(token ? { admin_token: token } : {}) },
    })
    await runAgent(url, START)
    const ask = await startPrometheus(program, filesFor(url, env))

    const targets = async () => (await ask('targets'))?.data['activeTargets'] as Target[] | undefined
    await expect
      .poll(targets, { timeout: 30_000 })
      .toMatchObject([{ health: 'up', lastError: '', labels: { job: 'governor' } }])

    const shipped = parse(read('config/prometheus/alerts.yml')) as { groups: readonly Group[] }
    const groups = (await ask('rules')).data['groups'] as readonly Group[]
    expect(groups.map(({ name, rules }) => [name, rules.length])).toEqual(
      shipped.groups.map(({ name, rules }) => [name, rules.length]),
    )
    expect(groups.flatMap(({ rules }) => rules.map(({ health }) => health))).not.toContain('err')

    const { panels } = JSON.parse(read('config/grafana/dashboard.json')) as {
      panels: readonly { targets: readonly { expr: string }[] }[]
    }
    const queries = panels.flatMap((panel) => panel.targets.map(({ expr }) => expr))
    expect(queries.length).toBeGreaterThan(10)
    for (const expr of queries) {
      const query = expr.replace(/\$__\w+/g, '5m').replace(/\$model/g, '.*')
      expect({ expr, status: (await ask(`query?query=${encodeURIComponent(query)}`)).status }).toEqual({
        expr,
        status: 'success',
      })
    }
    const { data } = await ask('query?query=sum(governor_stops_total)')
    expect(data['result']).toMatchObject([{ value: [expect.any(Number), '1'] }])
    const costs = (await ask('query?query=governor_cost_usd_total')).data
    expect(costs['result']).toMatchObject([{ metric: { upstream: 'openai', model: 'gpt-test' } }])
  })
})
