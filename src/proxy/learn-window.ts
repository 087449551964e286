/** What a success says of the windows of models: that a limit was wrong. */
import { succeedInSession } from '../core/context-window.ts'
import { keptName, type ModelAt } from '../overflow/windows.ts'
import type { Judgement } from './evaluate.ts'
import type { ProxyContext } from './services.ts'

/** Takes into account that a prompt of so many tokens was answered. */
export function noteSuccess(
  context: ProxyContext,
  judgement: Judgement,
  of: ModelAt,
  promptTokens: number,
): void {
  const { windows, emit } = context
  windows.succeed(of, promptTokens)
  const { reductions } = judgement.position
  const key = { upstream: of.upstream.name, model: keptName(of.model) }
  if (reductions === undefined || succeedInSession(reductions, key, promptTokens) === reductions) return
  judgement.remembered
    .contexts((contexts) => ({
      ...contexts,
      reductions: succeedInSession(contexts.reductions, key, promptTokens),
    }))
    .catch(() => emit({ kind: 'failed_open', reason: 'store' }))
}
