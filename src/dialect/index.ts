/** The dialects that Governor guards, in the order in which they may claim a path. */
import { chat } from './chat/index.ts'
import type { Api, BuiltInUpstream, Dialect } from './dialect.ts'
import { gemini } from './gemini/index.ts'
import { messages } from './messages/index.ts'
import { openai } from './openai/api.ts'
import { responses } from './responses/index.ts'

export const DIALECTS: readonly Dialect[] = [chat, messages, responses, gemini]

/** The upstreams that exist in every configuration, the first first. */
export const BUILT_IN_UPSTREAMS: readonly BuiltInUpstream[] = [...new Set(DIALECTS.map(({ api }) => api.upstream))]

/** What a body has, in any of these APIs and in others like them, that holds a conversation or offers tools for one. */
export const AGENT_KEYS: readonly string[] = ['"messages"', '"tools"']

/** The last part of a path, in any API, that counts, shows or keeps a prompt: no model answers there. */
export const ANSWERS_NOTHING = /count[-_]?tokens|^(?:tokenize|apply-template|cachedContents)$/i

/** The API of requests that no dialect claims and no other API recognizes. */
export const DEFAULT_API: Api = openai

/** Segments before the operation in providers' paths, as prefixes of a version (`/api/v1`, `/inference/v1`). */
const API_SEGMENTS: ReadonlySet<string> = new Set([
  ...['api', 'apps', 'openai', 'anthropic', 'inference', 'serverless', 'dedicated', 'engines', 'beta', 'models'],
  ...['compatible-mode', 'compatibility', 'compat', 'coding', 'zen', 'gateway', 'proxy', 'ai', 'llm'],
])

const VERSION = /^v\d/

/**
 * Returns the first segment of what stands before an operation, if all behind it is a provider's path with a version,
 * as a name of an upstream would be; `undefined` if that segment may be the provider's own.
 */
export function nameBefore(segments: readonly string[]): string | undefined {
  const isVersion = (segment: string) => VERSION.test(segment)
  const isOfApi = (segment: string) => isVersion(segment) || API_SEGMENTS.has(segment)
  const [name = '', ...others] = segments
  return !isOfApi(name) && others.every(isOfApi) && others.some(isVersion) ? name : undefined
}
