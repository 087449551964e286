/** The pieces that Chat Completions responses and chunks are made of. */
export type Json = Record<string, unknown>

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function parseObject(text: string): Json | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

export function choicesOf(body: Json): Json[] {
  return Array.isArray(body['choices']) ? body['choices'].filter(isObject) : []
}

export function contentText(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return ''
  return content
    .filter(isObject)
    .map((part) => (typeof part['text'] === 'string' ? part['text'] : ''))
    .join('')
}

export function hasCalls(message: Json): boolean {
  const calls = message['tool_calls']
  return (Array.isArray(calls) && calls.length > 0) || isObject(message['function_call'])
}

/** The message, or the delta, without what it calls. */
export function withoutCalls(message: Json): Json {
  const { tool_calls: _calls, function_call: _call, ...rest } = message
  return rest
}

/** A finish reason from the provider's own list that is still true once the calls are gone. */
export function finishWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_calls' || reason === 'function_call' ? 'stop' : reason
}

/** Adds two usage objects number by number, nested details included. */
export function addUsage(a: unknown, b: unknown): unknown {
  if (typeof a === 'number' && typeof b === 'number') return a + b
  if (!isObject(a) || !isObject(b)) return b ?? a
  const keys = new Set([...Object.keys(a), ...Object.keys(b)])
  return Object.fromEntries([...keys].map((key) => [key, addUsage(a[key], b[key])]))
}

/** What ends a stream. */
export const DONE = '[DONE]'
