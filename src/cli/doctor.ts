/** `governor doctor`: checks what a start needs, by a Governor on a port of its own. */

import { once } from 'node:events'
import { createServer } from 'node:net'
import { pino } from 'pino'
import { type Flags, loadConfig } from '../config/load.ts'
import { modelSettingsOf } from '../config/policies.ts'
import type { Config } from '../config/schema.ts'
import { DEFAULT_UPSTREAMS } from '../config/upstreams.ts'
import type { Upstream } from '../http/upstream.ts'
import { upstreamOf } from '../proxy/door/route.ts'
import { DEFAULT_JOURNAL, journalFile, whyUnwritable } from '../telemetry/journal.ts'
import { createCatalogue } from '../usage/catalogue.ts'
import type { Terminal } from './command.ts'
import { journalLines } from './report.ts'
import { jsonLine } from './session-table.ts'
import { listen, listenProblem } from './start.ts'

/** One thing that was checked. */
interface Check {
  readonly check: string
  readonly result: 'ok' | 'warning' | 'wrong'
  readonly says: string
}

const PATIENCE_MS = 15_000

/** Checks that a start can listen. A Governor that listens there already is fine. */
async function checkPort({ server: { host, port } }: Config): Promise<Check> {
  const check = 'port'
  const server = createServer().listen(port, host)
  try {
    await once(server, 'listening')
    server.close()
    return { check, result: 'ok', says: `${host}:${port} is free` }
  } catch (error) {
    const address = `http://${host.includes(':') ? `[${host}]` : host}:${port}`
    const reply = await fetch(`${address}/health`, { signal: AbortSignal.timeout(PATIENCE_MS) }).catch(() => undefined)
    const version = reply?.ok ? ((await reply.json().catch(() => ({}))) as { version?: string }).version : undefined
    if (version) return { check, result: 'ok', says: `Governor ${version} listens on ${address}` }
    return { check, result: 'wrong', says: listenProblem(error as Error, host, port) }
  }
}

/** Asks an upstream for its models, as a client without a key would. */
async function checkUpstream(
  address: string,
  { name, origin, holdsKey }: Upstream,
  config: Config,
): Promise<readonly Check[]> {
  const [accessKey] = config.server.access_keys
  const isBuiltIn = Object.hasOwn(DEFAULT_UPSTREAMS, name)
  const path = isBuiltIn ? '/v1/models' : `/${name}/v1/models`
  const headers = {
    ...(accessKey ? { authorization: `Bearer ${accessKey}` } : {}),
    // Without a name in the path, Governor tells the two by this header.
    ...(name === 'anthropic' ? { 'anthropic-version': '2023-06-01' } : {}),
  }
  const response = await fetch(`${address}${path}`, {
    headers,
    signal: AbortSignal.timeout(PATIENCE_MS),
  }).catch(() => undefined)
  const status = response?.status ?? 0
  const reply = (await response?.json().catch(() => undefined)) as
    | { error?: { code?: string; message?: string } }
    | undefined
  const check = `upstream ${name}`
  const isSilent = status === 0 || status === 502 || status === 504
  const why = reply?.error?.message ?? `no answer within ${PATIENCE_MS / 1_000} s`
  const reached: Check = isSilent
    ? { check, result: 'wrong', says: `${origin}: ${why}` }
    : { check, result: status >= 500 ? 'warning' : 'ok', says: `${origin} answers with ${status}` }
  if (isSilent) return [reached]
  const isRefused = status === 401 || status === 403
  const key: Check = holdsKey
    ? {
        check: `key of ${name}`,
        result: isRefused ? 'wrong' : 'ok',
        says: isRefused ? `held by Governor, and refused with ${status}` : 'held by Governor',
      }
    : { check: `key of ${name}`, result: 'ok', says: "the client's own, passed on" }
  return [reached, key]
}

/** Returns the models that agents used in the last 30 days, with their upstreams. */
async function usedModels(path: string): Promise<readonly { readonly model: string; readonly upstream: string }[]> {
  const used = new Map<string, { model: string; upstream: string }>()
  const from = Date.now() - 30 * 86_400_000
  for await (const { time, model, upstream } of journalLines(path))
    if (Date.parse(time) >= from) used.set(`${upstream} ${model}`, { model, upstream })
  return [...used.values()]
}

/** Checks that prices are there, and known for the models in the journal. */
async function checkPrices(config: Config): Promise<Check> {
  const check = 'prices'
  const catalogue = createCatalogue(modelSettingsOf(config))
  const problem = await catalogue.load().catch((error: Error) => error.message)
  if (problem)
    return {
      check,
      result: 'warning',
      says: `the catalogue is not there (${problem}): only those of models are known`,
    }
  const { journal } = config.usage
  // A journal that can't be read names no models, and is a check of its own.
  const used = await usedModels(journal || DEFAULT_JOURNAL).catch(() => [])
  const unknown = used.filter(({ model, upstream: name }) => {
    const settings = config.upstreams[name] ?? { url: 'http://unknown', headers: {}, strip_name: false }
    return !catalogue.priceOf(model, upstreamOf(name, settings))
  })
  if (unknown.length === 0)
    return {
      check,
      result: 'ok',
      says: `the catalogue is there${used.length > 0 ? ', and knows the models in the journal' : ''}`,
    }
  const names = unknown
    .map(({ model }) => model)
    .slice(0, 5)
    .join(', ')
  return { check, result: 'warning', says: `not known for ${names}: set them in models` }
}

async function checkStore(address: string, { store, ops }: Config): Promise<Check> {
  const headers = ops.admin_token ? { authorization: `Bearer ${ops.admin_token}` } : {}
  const response = await fetch(`${address}/ready`, { headers, signal: AbortSignal.timeout(PATIENCE_MS) })
  const { store: found } = (await response.json()) as { store?: { status?: string } }
  const isUp = store === 'memory' || found?.status !== 'degraded'
  const says =
    store === 'memory'
      ? 'memory: sessions are forgotten at the end'
      : isUp
        ? 'redis answers'
        : 'redis does not answer: see redis.url'
  return { check: 'store', result: isUp ? 'ok' : 'wrong', says }
}

async function checkJournal({ usage: { journal } }: Config): Promise<Check> {
  const check = 'journal'
  if (!journal) return { check, result: 'ok', says: 'none: usage.journal names a file for governor report' }
  const problem = await whyUnwritable(journal)
  if (problem === undefined) return { check, result: 'ok', says: journalFile(journal) }
  return { check, result: 'wrong', says: `can't be written: ${problem}. See usage.journal.` }
}

/** Checks everything and says so. Returns 1 if something is wrong. Throws `ConfigError`. */
export async function doctor(json: boolean, flags: Flags, terminal: Terminal): Promise<number> {
  const { config, file } = loadConfig(flags, terminal.env)
  const checks: Check[] = []
  const say = (check: Check): void => {
    checks.push(check)
    const { check: title, result, says } = check
    terminal.out(json ? jsonLine(check) : `${result.padEnd(8)}${title.padEnd(21)}${says}\n`)
  }
  say({ check: 'configuration', result: 'ok', says: file ?? 'no file: the defaults count' })
  say(await checkPort(config))
  const own: Config = {
    ...config,
    server: { ...config.server, host: '127.0.0.1', port: 0 },
    events: { webhook: { ...config.events.webhook, url: undefined } },
    usage: { journal: '' },
  }
  const listening = await listen(own, terminal, pino({ level: 'silent' }), () => undefined)
  if (!listening) return 1
  const { governor, address } = listening
  const upstreams = Object.entries(config.upstreams).map(([name, settings]) => upstreamOf(name, settings))
  const found = await Promise.all(upstreams.map((upstream) => checkUpstream(address, upstream, config)))
  for (const check of found.flat()) say(check)
  say(await checkPrices(config))
  say(await checkStore(address, config))
  say(await checkJournal(config))
  await governor.close()
  return checks.some(({ result }) => result === 'wrong') ? 1 : 0
}
