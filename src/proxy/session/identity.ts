/** What a client says about itself and its request: tenant, ids of session and thread, the kind of request. */
import { nameOf } from '../../core/hash.ts'
import type { DialectRequest } from '../../dialect/dialect.ts'
import { type CredentialPlaces, credentialsOf } from '../../http/credentials.ts'
import { headerOf, type RawHeaders } from '../../http/headers.ts'

/** Header names in lower case; body fields as paths of keys. */
export interface IdentitySettings {
  readonly headers: readonly string[]
  readonly threadHeaders: readonly string[]
  readonly bodyFields: readonly (readonly string[])[]
}

/** Returns a hash of the credentials in headers and query: it distinguishes tenants and reveals no key. */
export function tenantOf(headers: RawHeaders, target: string, places: CredentialPlaces): string {
  return nameOf(credentialsOf(headers, target, places)).slice(0, 16)
}

/** Longer ids, and ids that a header cannot hold, are replaced by their hash. */
const MAX_ID = 200

/** Returns an id of a client or a provider in a form that can be stored and sent in a header. */
export function presentable(id: string): string {
  return id.length <= MAX_ID && /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(id) ? id : nameOf(id)
}

function firstHeader(headers: RawHeaders, names: readonly string[]): string | undefined {
  for (const name of names) {
    const value = headerOf(headers, name)?.trim()
    if (value) return value
  }
  return undefined
}

/** Returns the session id that a client sent, in a form that a header can contain; `undefined` for none. */
export function explicitSessionId(
  headers: RawHeaders,
  request: Pick<DialectRequest, 'sessionIdAt'>,
  settings: IdentitySettings,
): string | undefined {
  const fromHeader = firstHeader(headers, settings.headers)
  if (fromHeader !== undefined) return presentable(fromHeader)
  for (const path of settings.bodyFields) {
    const value = request.sessionIdAt(path)
    if (value !== undefined) return presentable(value)
  }
  return undefined
}

/** Returns the name of the client's program, without its version; `undefined` if there is none. */
export function agentNameOf(headers: RawHeaders): string | undefined {
  // https://www.rfc-editor.org/rfc/rfc9110#name-user-agent: a product is a token.
  const [name] = /^[\w!#$%&'*+.^`|~-]{1,64}/.exec(headerOf(headers, 'user-agent')?.trim() ?? '') ?? []
  return name
}

/** Returns the thread name that a client sent, in a form that a header can contain; empty if it sent none. */
export function threadNameOf(headers: RawHeaders, settings: IdentitySettings): string {
  const name = firstHeader(headers, settings.threadHeaders)
  return name === undefined ? '' : presentable(name)
}

// Claude Code says these facts, which come before any guess by the request's form, to a gateway if
// CLAUDE_CODE_GATEWAY_HINT_HEADERS is set: https://code.claude.com/docs/en/llm-gateway-protocol

/** Returns whether a request is a step of a run; `undefined` if its headers do not say so in a known word. */
export function isStep(headers: RawHeaders): boolean | undefined {
  const compaction = headerOf(headers, 'x-claude-code-compaction')?.trim() ?? ''
  const kind = headerOf(headers, 'x-claude-code-request-class')?.trim() ?? ''
  // It asks for a summary of the history, or for a title, a classification or a summary for people.
  if (/^(?:auto|manual|reactive)$/.test(compaction) || /^(?:compaction|auxiliary)$/.test(kind)) return false
  return /^(?:main|subagent|workflow)$/.test(kind) || undefined
}

/** Returns whether the client says that it replaced its history by a summary. */
export function isCompacted(headers: RawHeaders): boolean {
  return /^(?:true|1)$/i.test(headerOf(headers, 'x-claude-code-context-compacted')?.trim() ?? '')
}
