/**
 * What a client says in headers about its request: these facts come before any guess by the request's form. Claude
 * Code sends them to a gateway if CLAUDE_CODE_GATEWAY_HINT_HEADERS is set:
 * https://code.claude.com/docs/en/llm-gateway-protocol
 */
import { headerOf, type RawHeaders } from '../../http/headers.ts'

/** The classes of requests, and whether one is a step of a run. */
const CLASSES: ReadonlyMap<string, boolean> = new Map([
  ['main', true],
  ['subagent', true],
  ['workflow', true],
  // It asks for a summary of the history.
  ['compaction', false],
  // A title, a classification, a summary for people.
  ['auxiliary', false],
])

/** What started a compaction. */
const COMPACTIONS: ReadonlySet<string> = new Set(['auto', 'manual', 'reactive'])

/** Returns whether a request is a step of a run; `undefined` if its headers do not say so in a known word. */
export function isStep(headers: RawHeaders): boolean | undefined {
  if (COMPACTIONS.has(headerOf(headers, 'x-claude-code-compaction')?.trim() ?? '')) return false
  return CLASSES.get(headerOf(headers, 'x-claude-code-request-class')?.trim() ?? '')
}

/** Returns whether the client says that it replaced its history by a summary. */
export function isCompacted(headers: RawHeaders): boolean {
  return /^(?:true|1)$/i.test(headerOf(headers, 'x-claude-code-context-compacted')?.trim() ?? '')
}
