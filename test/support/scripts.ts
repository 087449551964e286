/** Scripts of models that call tools until Governor makes them answer. */
import type { Answer, Received, Script } from './provider.ts'

/** True if the model reads the result of a blocked call, whichever API it speaks. */
export function readsBlock({ json, items }: Received): boolean {
  return JSON.stringify(items ?? json.messages).includes('"[LOOP GUARD] Blocked')
}

/** True if the request lets the model call a tool. */
export function mayCall({ json: { tool_choice: choice } }: Received): boolean {
  return choice !== 'none' && (choice as { readonly type?: string } | undefined)?.type !== 'none'
}

/** Gives `repeated` until the model reads that its call was blocked, or may call no tools; then follows `after`. */
export function repeatsUntilBlocked(repeated: Answer, after: Script): Script {
  return (request, number) => (readsBlock(request) || !mayCall(request) ? after(request, number) : repeated)
}

const STOP_REQUEST = "You've reached the maximum number of tool-calling"

/** Calls `search` until it is asked for its final answer; then gives the answers in `last` in order, and repeats the last one. */
export function callsUntilStopped(...last: readonly Answer[]): Script {
  let stops = 0
  return ({ json }, number) => {
    const isStop = JSON.stringify(json.messages).includes(STOP_REQUEST) || !json.tools
    if (!isStop) return { calls: [{ name: 'search', arguments: { query: `q${number}` } }] }
    return last[Math.min(stops++, last.length - 1)] ?? {}
  }
}
