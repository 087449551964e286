/** How `governor run` leads programs to Governor that read no variable of a base URL, or something else before it. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Environment } from '../../config/load.ts'
import { type Json, objectIn, parseObject } from '../../core/json-object.ts'

/** Where Governor listens: its address, and the base URL of OpenAI's APIs. */
interface Place {
  readonly address: string
  readonly openAiBase: string
}

/** A program as it is started. */
interface Start {
  readonly args: readonly string[]
  readonly env: Environment
  /** Removes what was written for it. */
  readonly tidy?: () => void
}

const SETTINGS = '--settings'

/**
 * Returns the settings that a user gave Claude Code on its command line, as JSON or as a file; empty if they can't be
 * read.
 */
function givenSettings(text: string) {
  try {
    return parseObject(text.trimStart().startsWith('{') ? text : readFileSync(text, 'utf8')) ?? {}
  } catch {
    return {}
  }
}

/** The programs, by the names of their files. What they are told wins over their own files. */
const PROGRAMS: Readonly<Record<string, (start: Start, place: Place) => Start>> = {
  // A base URL in one of its settings files wins over the environment; its command line wins over all of them.
  claude({ args, env }, { address }) {
    const at = args.findIndex((arg) => arg === SETTINGS || arg.startsWith(`${SETTINGS}=`))
    const isJoined = at !== -1 && args[at] !== SETTINGS
    const text = (isJoined ? args[at]?.slice(SETTINGS.length + 1) : args[at + 1]) ?? ''
    const given = at === -1 ? {} : givenSettings(text)
    const settings = { ...given, env: { ...objectIn(given, 'env'), ANTHROPIC_BASE_URL: address } }
    const others = at === -1 ? args : args.toSpliced(at, isJoined ? 1 : 2)
    return { env, args: [SETTINGS, JSON.stringify(settings), ...others] }
  },
  codex: ({ args, env }, { openAiBase }) => ({ env, args: ['-c', `openai_base_url="${openAiBase}"`, ...args] }),
  copilot({ args, env }, { address, openAiBase }) {
    const base = env['COPILOT_PROVIDER_TYPE'] === 'anthropic' ? address : openAiBase
    return { args, env: { ...env, COPILOT_PROVIDER_BASE_URL: base } }
  },
  // It reads this variable after all its files; its user may have settings there, too.
  opencode({ args, env }, { address, openAiBase }) {
    const own = parseObject(env['OPENCODE_CONFIG_CONTENT'] || '{}')
    if (!own) return { args, env }
    const provider: Json = { ...objectIn(own, 'provider') }
    for (const [name, baseURL] of [['openai', openAiBase] as const, ['anthropic', `${address}/v1`] as const]) {
      const given = objectIn(provider, name)
      provider[name] = { ...given, options: { ...objectIn(given, 'options'), baseURL } }
    }
    return { args, env: { ...env, OPENCODE_CONFIG_CONTENT: JSON.stringify({ ...own, provider }) } }
  },
  // It takes providers from an extension after those of its own files.
  pi({ args, env }, { address, openAiBase }) {
    const folder = mkdtempSync(join(tmpdir(), 'governor-pi-'))
    const file = join(folder, 'governor.mjs')
    const register = (name: string, baseUrl: string) => `  pi.registerProvider('${name}', { baseUrl: '${baseUrl}' })\n`
    const body = register('anthropic', address) + register('openai', openAiBase)
    writeFileSync(file, `export default (pi) => {\n${body}}\n`)
    return { env, args: ['-e', file, ...args], tidy: () => rmSync(folder, { recursive: true, force: true }) }
  },
}

/** Returns how a program is started so that it sends its requests to Governor; `name`: of its file. */
export function redirected(name: string, start: Start, place: Place): Start {
  const by = Object.hasOwn(PROGRAMS, name) ? PROGRAMS[name] : undefined
  return by ? by(start, place) : start
}
