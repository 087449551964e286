/** `governor doctor`: checks what a start needs, by a Governor on a port of its own. */

import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { pino } from 'pino'
import { type Environment, loadConfig } from '../config/load.ts'
import type { Config } from '../config/schema.ts'
import { GAPS } from '../core/gaps.ts'
import { parseObject, textOf } from '../core/json-object.ts'
import { isNameIn } from '../core/names.ts'
import { BUILT_IN_UPSTREAMS } from '../dialect/index.ts'
import type { Upstream } from '../http/upstream.ts'
import { upstreamOf } from '../proxy/door/route.ts'
import { DEFAULT_JOURNAL, journalFile, whyUnwritable } from '../telemetry/journal.ts'
import { createCatalogue } from '../usage/catalogue.ts'
import { AGENT_FILES, governorAddress, isGovernor, ownAddresses, shownAddress } from './agent-files.ts'
import type { Call, Terminal } from './command.ts'
import { journalLines } from './journal/report.ts'
import type { Heard } from './start/bill.ts'
import { listen, listenProblem, observeWords, openKeys } from './start/start.ts'
import { jsonLine } from './terminal-text.ts'

type Finding = readonly [result: 'ok' | 'warning' | 'wrong', says: string]

const PATIENCE_MS = 15_000

interface Reply {
  readonly version?: string
  readonly error?: { readonly message?: string }
  readonly store?: { readonly status?: string }
}

/** Sends a GET request; the status is 0 if there was no answer in time, and the reply empty if it is not JSON. */
async function askGovernor(url: string, headers: Readonly<Record<string, string>> = {}) {
  let status = 0
  let text = ''
  try {
    const response = await fetch(url, { headers, signal: AbortSignal.timeout(PATIENCE_MS) })
    status = response.status
    text = await response.text()
  } catch {
    // The status says whether there was an answer.
  }
  const reply: Reply = parseObject(text) ?? {}
  return { status, text, reply }
}

function addressOf(host: string, port: number): string {
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`
}

/** Checks that a start can listen. A Governor that listens there already is fine. */
async function checkPort({ server: { host, port } }: Config): Promise<Finding> {
  const server = createServer().listen(port, host)
  try {
    await once(server, 'listening')
    server.close()
    return ['ok', `${host}:${port} is free`]
  } catch (error) {
    const address = addressOf(host, port)
    const { status, reply } = await askGovernor(`${address}/health`)
    if (status === 200 && reply.version) return ['ok', `Governor ${reply.version} listens on ${address}`]
    return ['wrong', listenProblem(error, host, port)]
  }
}

/** Says what the Governor that listens at the port could not guard; `undefined` if its metrics can't be read. */
async function checkGaps({ server: { host, port } }: Config, token: string | undefined): Promise<Finding | undefined> {
  const headers = token ? { authorization: `Bearer ${token}` } : undefined
  const { text } = await askGovernor(`${addressOf(host, port)}/metrics`, headers)
  const lines = text.split('\n')
  // Nothing may listen there, or another program.
  if (!lines.some((line) => line.startsWith('# TYPE governor_requests_total '))) return undefined
  const said: string[] = []
  for (const line of lines) {
    const [, reason = '', requests] = /^governor_failed_open_total\{reason="(\w+)"[^ ]* (\d+)$/.exec(line) ?? []
    if (requests) said.push(`${isNameIn(GAPS, reason) ? GAPS[reason] : reason.replaceAll('_', ' ')} (${requests})`)
  }
  if (said.length > 0) return ['warning', `not in full: ${said.join('; ')}`]
  const isGuarded = (line: string) => line.startsWith('governor_requests_total{') && !line.includes('dialect="none"')
  if (lines.some(isGuarded)) return ['ok', 'all requests so far']
  return ['warning', 'no guarded request came yet: docs/clients.md says what each agent has to be told']
}

/** Says of each agent whose own files lead it past the port what to write there; `governor run` says so at its end. */
function checkAgents({ server: { port } }: Config, env: Environment): readonly (readonly [string, Finding])[] {
  const found: [string, Finding][] = []
  for (const name of Object.keys(AGENT_FILES))
    for (const { file, url } of ownAddresses(name, env)) {
      if (isGovernor(url.href, port)) continue
      const says = `not guarded: ${file} leads it to ${shownAddress(url)}: write ${governorAddress(url, port)} there`
      found.push([`agent ${name}`, ['warning', says]])
    }
  return found
}

/** Asks an upstream for its models, as a client without a key would; returns what that says about it and its key. */
async function checkUpstream(address: string, { name, origin, holdsKey }: Upstream, accessKey: string) {
  const found = new Map<string, Finding>()
  const path = BUILT_IN_UPSTREAMS.find((one) => one.name === name)?.models ?? `/${name}/v1/models`
  const { status, reply } = await askGovernor(`${address}${path}`, {
    authorization: `Bearer ${accessKey}`,
    // Without a name in the path, Governor tells the two by this header.
    ...(name === 'anthropic' ? { 'anthropic-version': '2023-06-01' } : {}),
  })
  if (status === 0 || status === 502 || status === 504) {
    const why = reply.error?.message ?? `no answer within ${PATIENCE_MS / 1_000} s`
    return found.set(`upstream ${name}`, ['wrong', `${origin}: ${why}`])
  }
  let key: Finding = ['ok', holdsKey ? 'held by Governor' : "the client's own, passed on"]
  if (holdsKey && (status === 401 || status === 403)) key = ['wrong', `held by Governor, and refused with ${status}`]
  found.set(`upstream ${name}`, [status >= 500 ? 'warning' : 'ok', `${origin} answers with ${status}`])
  return found.set(`key of ${name}`, key)
}

/** Checks that prices are there, and known for the models that the journal has of the last 30 days. */
async function checkPrices(config: Config): Promise<Finding> {
  const catalogue = createCatalogue(config.models)
  const problem = await catalogue.load()
  if (problem) return ['warning', `the catalogue is not there (${problem.message}): only those of models are known`]
  const from = Date.now() - 30 * 86_400_000
  const used = new Set<string>()
  const unknown = new Set<string>()
  try {
    for await (const line of journalLines(config.usage.journal || DEFAULT_JOURNAL)) {
      const [model, name] = [textOf(line['model']) || 'unknown', textOf(line['upstream'])]
      if (Date.parse(line.time) < from || used.has(`${name} ${model}`)) continue
      used.add(`${name} ${model}`)
      const settings = config.upstreams[name] ?? { url: 'http://unknown', headers: {}, strip_name: false }
      if (!catalogue.modelAt(model, upstreamOf(name, settings)).price) unknown.add(model)
    }
  } catch {
    // A journal that can't be read is a check of its own.
  }
  if (unknown.size > 0) return ['warning', `not known for ${[...unknown].slice(0, 5).join(', ')}: set them in models`]
  return ['ok', `the catalogue is there${used.size > 0 ? ', and knows the models in the journal' : ''}`]
}

/** Returns the key that says where Redis is. */
function placeOf({ redis: { cluster, sentinel } }: Config): string {
  if (cluster.length > 0) return 'redis.cluster'
  return sentinel.nodes.length > 0 ? 'redis.sentinel' : 'redis.url'
}

/** Checks everything and says so. Returns 1 if something is wrong. Throws `ConfigError`. */
export async function doctor({ flags }: Call, terminal: Terminal): Promise<number> {
  const { config, file } = loadConfig(flags, terminal.env)
  let exitCode = 0
  const say = (check: string, [result, says]: Finding): void => {
    if (result === 'wrong') exitCode = 1
    terminal.out(flags.json ? jsonLine({ check, result, says }) : `${result.padEnd(8)}${check.padEnd(21)}${says}\n`)
  }
  say('configuration', ['ok', file ?? 'no file: the defaults count'])
  if (config.mode === 'observe') say('mode', ['warning', observeWords(terminal.env)])
  const open = openKeys(config)
  if (open) say('access keys', ['wrong', `${config.server.host}: ${open}`])
  say('port', await checkPort(config))
  const gaps = await checkGaps(config, config.ops.admin_token)
  if (gaps) say('guarded', gaps)
  for (const [check, finding] of checkAgents(config, terminal.env)) say(check, finding)
  // Of the configured ones, some are known by their hash alone, or allow only some models.
  const accessKey = randomUUID()
  const checked: Config = {
    ...config,
    server: { ...config.server, host: '127.0.0.1', port: 0, access_keys: [accessKey] },
    events: { webhook: { ...config.events.webhook, url: undefined } },
    usage: { journal: '' },
  }
  let storeProblem = ''
  const heard = (event: Heard) => {
    if (event.kind === 'store_changed') storeProblem = event.problem ?? ''
  }
  const { governor, address } = await listen(checked, terminal, pino({ level: 'silent' }), heard)
  const checks = Object.entries(config.upstreams).map(([name, settings]) =>
    checkUpstream(address, upstreamOf(name, settings), accessKey),
  )
  for (const found of await Promise.all(checks)) for (const [check, finding] of found) say(check, finding)
  say('prices', await checkPrices(config))
  if (config.store === 'memory') say('store', ['ok', 'memory: sessions are forgotten at the end'])
  else {
    const { reply } = await askGovernor(`${address}/ready`)
    const isUp = reply.store?.status === 'ok'
    const why = storeProblem.replaceAll('\n', ' ').trim() || 'no answer'
    say('store', isUp ? ['ok', 'redis answers'] : ['wrong', `redis can't be used (${why}): see ${placeOf(config)}`])
  }
  const { journal } = config.usage
  const problem = journal && (await whyUnwritable(journal))
  if (problem) say('journal', ['wrong', `can't be written: ${problem}. See usage.journal.`])
  else say('journal', ['ok', journal ? journalFile(journal) : 'none: usage.journal names a file for governor report'])
  await governor.close()
  return exitCode
}
