/** The header that turns on beta features of Anthropic's API; gateways pass it on in any dialect. */
export const BETA_HEADER = 'anthropic-beta'

/** Betas that give a longer context. */
const LONG_CONTEXT = /^context-\d+[km]-/i

/** Returns raw headers without the betas of a longer context; `undefined` if there are none. */
export function withoutLongContext(headers: readonly string[]): string[] | undefined {
  let isFound = false
  const kept: string[] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name = '', value = ''] = [headers[at], headers[at + 1]]
    if (name.toLowerCase() !== BETA_HEADER) {
      kept.push(name, value)
      continue
    }
    const betas = value.split(',').map((beta) => beta.trim())
    const others = betas.filter((beta) => !LONG_CONTEXT.test(beta))
    isFound ||= others.length < betas.length
    if (others.length > 0) kept.push(name, others.join(','))
  }
  return isFound ? kept : undefined
}
