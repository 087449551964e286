/** Where agents' own settings lead their requests. Nothing is written to them. */
import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { Environment } from '../config/load.ts'
import { isObject, parseObject, propertyOf } from '../core/json-object.ts'

/** The files in which each agent keeps base URLs, in the folder that it is started in and in its user's home. */
export const AGENT_FILES: Readonly<Record<string, readonly string[]>> = {
  claude: ['.claude/settings.local.json', '.claude/settings.json'],
  codex: ['.codex/config.toml'],
  opencode: ['opencode.json', 'opencode.jsonc', '.config/opencode/opencode.json', '.config/opencode/opencode.jsonc'],
  pi: ['.pi/agent/models.json'],
  gemini: ['.gemini/.env', '.env'],
  qwen: ['.qwen/settings.json', '.qwen/.env', '.env'],
  cn: ['.continue/config.yaml'],
  cline: ['.cline/data/settings/providers.json'],
}

/**
 * A variable with settings of an agent, which win over all its files, and one that names a file, which wins over those
 * of its user's home.
 */
const AGENT_VARIABLES: Readonly<Record<string, { readonly text: string; readonly file: string }>> = {
  opencode: { text: 'OPENCODE_CONFIG_CONTENT', file: 'OPENCODE_CONFIG' },
}

/** A key that names a base URL, in JSON, TOML, YAML or a list of variables. */
const ADDRESS = /\b(\w{0,40}(?:base_?url|api_?base))["']?\s{0,4}[:=]\s{0,4}["']?(https?:\/\/[^\s"'`,}]{1,2000})/gi
const COMMENT = /^[ \t]{0,200}(?:#|\/\/).*$/gm

/** An address in the settings of an agent. */
export interface OwnAddress {
  /** The file, as people write it, or the variable. */
  readonly file: string
  /** What has it there, such as `ANTHROPIC_BASE_URL`. */
  readonly keys: ReadonlySet<string>
  readonly url: URL
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8').slice(0, 1_000_000)
  } catch {
    return ''
  }
}

/**
 * Returns the variables that base URLs in a file stand for: of opencode's `provider.openai.options.baseURL` and pi's
 * `providers.openai.baseUrl` it is `OPENAI_BASE_URL`.
 */
function variablesIn(text: string): Map<unknown, string> {
  const { provider, providers } = parseObject(text) ?? {}
  const named = [provider, providers].flatMap((list) => Object.entries(isObject(list) ? list : {}))
  return new Map(
    named.map(([name, settings]) => {
      const url = propertyOf(propertyOf(settings, 'options'), 'baseURL') ?? propertyOf(settings, 'baseUrl')
      return [url, `${name.toUpperCase()}_BASE_URL`]
    }),
  )
}

/** Variables with which users move a folder of their home. */
const MOVED: readonly (readonly [folder: string, variable: string])[] = [
  ['.claude', 'CLAUDE_CONFIG_DIR'],
  ['.codex', 'CODEX_HOME'],
  ['.config', 'XDG_CONFIG_HOME'],
  ['.pi/agent', 'PI_CODING_AGENT_DIR'],
  ['.qwen', 'QWEN_HOME'],
  ['.continue', 'CONTINUE_GLOBAL_DIR'],
  ['.cline/data', 'CLINE_DATA_DIR'],
]

/** Returns where a file of the home is, and how people write that; nothing if there is no home. */
function inHome(file: string, env: Environment): readonly (readonly [path: string, shown: string])[] {
  for (const [folder, variable] of MOVED) {
    const moved = env[variable]
    const rest = file.slice(folder.length)
    if (moved && file.startsWith(`${folder}/`)) return [[moved + rest, `$${variable}${rest}`]]
  }
  const { HOME: home } = env
  return home ? [[`${home}/${file}`, `~/${file}`]] : []
}

/** Returns the addresses in an agent's settings, in the order in which they win. `name`: of its program. */
export function ownAddresses(name: string, env: Environment): readonly OwnAddress[] {
  const found = new Map<string, OwnAddress & { readonly keys: Set<string> }>()
  const of = <Value>(table: Readonly<Record<string, Value>>) => (Object.hasOwn(table, name) ? table[name] : undefined)
  const files = of(AGENT_FILES) ?? []
  const variables = of(AGENT_VARIABLES)
  const named = (variables && env[variables.file]) || undefined
  const here = [...files, ...(named ? [named] : [])].map((file) => [file, file] as const)
  const inFiles = [...here, ...files.flatMap((one) => inHome(one, env))].map(([place, file]) => {
    const path = resolve(place)
    return { path, file, all: read(path) }
  })
  const given = variables ? [{ path: '', file: variables.text, all: env[variables.text] ?? '' }] : []
  for (const { path, file, all } of [...given, ...inFiles]) {
    const text = all.replace(COMMENT, '')
    const stands = variablesIn(text)
    for (const [, key = '', url = ''] of text.matchAll(ADDRESS)) {
      if (!URL.canParse(url)) continue
      const { keys } = found.get(`${path} ${url}`) ?? { keys: new Set() }
      // A file of both folders keeps its place, and is named as one of the home.
      keys.add(key.toUpperCase()).add(stands.get(url) ?? '')
      found.set(`${path} ${url}`, { file, keys, url: new URL(url) })
    }
  }
  return [...found.values()]
}

/** Returns an address for people, without a password that may be in it. */
export function shownAddress({ origin, pathname }: URL): string {
  return origin + (pathname === '/' ? '' : pathname)
}

/** Says that an address is that of a Governor on this machine at a port, which may run or have run. */
export function isGovernor(url: string, port: number | string): boolean {
  return url.includes(`//127.0.0.1:${port}`) || url.includes(`//localhost:${port}`)
}

/** Returns what an agent's file has to say in place of an address, so that it leads to a Governor at a port. */
export function governorAddress({ pathname }: URL, port: number): string {
  return `http://127.0.0.1:${port}${/\/v1\/?$/.test(pathname) ? '/v1' : ''}`
}
