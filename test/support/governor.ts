/** A Governor on a free port, in front of any upstream of a test. */
import { pino } from 'pino'
import { onTestFinished } from 'vitest'
import { buildGovernor, type Governor, type GovernorOptions } from '../../src/app.ts'
import { checkConfig } from '../../src/config/load.ts'
import type { ProxyEvent } from '../../src/telemetry/event.ts'
import { type Provider, type Script, startProvider } from './provider.ts'
import { type Model, type ModelServer, searcher, startModel } from './shortened-agent.ts'

export interface Running {
  readonly url: string
  readonly governor: Governor
  /** All events, oldest first. */
  readonly events: ProxyEvent[]
  /** Everything that was logged, as text. */
  readonly logs: string[]
  /** Waits for an event that `matches`, also one that has already happened. */
  until(matches: (event: ProxyEvent) => boolean): Promise<ProxyEvent>
}

type Tree = { [key: string]: unknown }

const hour = new Date().getUTCHours()
/** A time zone in which it is about noon: no day, week or month of a limit ends while a test runs. */
export const NOON_ZONE = `Etc/GMT${hour < 12 ? '-' : '+'}${Math.abs(12 - hour)}`

/** Starts a Governor for the current test, with `config` as a file would have it. */
export async function startGovernor(
  upstream: string,
  config: Tree = {},
  options: Partial<GovernorOptions> = {},
): Promise<Running> {
  const events: ProxyEvent[] = []
  const logs: string[] = []
  const waiting = new Set<() => void>()
  const log = pino({ level: 'trace' }, { write: (line: string) => logs.push(line) })
  const checked = checkConfig(
    {
      upstreams: { openai: { url: upstream }, anthropic: { url: upstream }, gemini: { url: upstream } },
      ...config,
      ...(options.now ? {} : { budget: { time_zone: NOON_ZONE, ...(config['budget'] as Tree | undefined) } }),
      server: { port: 0, ...(config['server'] as Tree | undefined) },
    },
    'test',
  )
  const governor = buildGovernor(checked, {
    ...options,
    log,
    onEvent(event) {
      events.push(event)
      for (const look of waiting) look()
    },
  })
  const url = await governor.listen()
  onTestFinished(() => governor.close())
  return {
    url,
    governor,
    events,
    logs,
    until: (matches) =>
      new Promise((resolve) => {
        const look = () => {
          const found = events.find(matches)
          if (!found) return
          waiting.delete(look)
          resolve(found)
        }
        waiting.add(look)
        look()
      }),
  }
}

/** A scripted provider and a Governor in front of it, for the current test. */
export async function startBoth(
  script: Script,
  config: Tree = {},
  options: Partial<GovernorOptions> = {},
): Promise<Running & { readonly provider: Provider }> {
  const provider = await startProvider(script)
  onTestFinished(() => provider.close())
  const running = await startGovernor(provider.url, config, options)
  return { ...running, provider }
}

/** A model and a Governor in front of it, for the current test. */
export async function startBeforeModel(
  config: Tree = {},
  model: Model = searcher,
): Promise<Running & { readonly model: ModelServer }> {
  const server = await startModel(model)
  onTestFinished(() => server.close())
  return { ...(await startGovernor(server.url, config)), model: server }
}
