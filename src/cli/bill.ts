/** The bill of a Governor that ends: what went through it, what that cost, and what Governor did. */
import { tokens } from '../core/budget/meters.ts'
import type { ProxyEvent } from '../telemetry/event.ts'
import { counted, fitted } from './terminal-text.ts'

export function createBill() {
  // Requests are all that clients sent, guarded or not, also those that failed.
  const sums = { requests: 0, iterations: 0, tokens: 0, cost_usd: 0, notices: 0, loops: 0, stops: 0 }
  const unpriced = new Set<string>()
  return {
    record(event: ProxyEvent) {
      if (event.kind === 'request_ended') {
        sums.requests++
        const isIteration = event.iteration !== undefined && !event.isRetry && event.verdict !== 'stop'
        if (isIteration && event.status === 200) sums.iterations++
      }
      if (event.kind === 'answered') {
        sums.tokens += event.usage.input + event.usage.output
        sums.cost_usd += event.usage.cost ?? 0
      }
      if (event.kind === 'unpriced_model' && unpriced.size < 3) unpriced.add(fitted(event.model, 40).trimEnd())
      if (event.kind === 'notice') sums.notices++
      if (event.kind === 'loop') sums.loops++
      if (event.kind === 'stopped') sums.stops++
    },
    facts: () => ({ ...sums, cost_usd: Math.round(sums.cost_usd * 1e6) / 1e6 }),
    text(): string {
      const { requests, iterations, cost_usd: cost, notices, loops, stops } = sums
      const dollars = cost > 0 || unpriced.size === 0 ? `$${cost.toFixed(cost < 0.1 ? 4 : 2)}` : '?'
      const names = unpriced.size > 0 ? ` (price not known: ${[...unpriced].join(', ')})` : ''
      const used = `${tokens(sums.tokens, 0).used} tokens, ${dollars}${names}`
      return (
        `governor: ${counted(requests, 'request')}, ${counted(iterations, 'iteration')}, ${used}\n` +
        `          ${counted(notices, 'notice')}, ${counted(loops, 'loop')}, ${counted(stops, 'stop')}\n`
      )
    },
  }
}
