/** What a success says of the windows of models: that a limit was wrong. */
import { succeedInSession } from '../core/context-window.ts'
import { keptName, type ModelAt } from '../overflow/windows.ts'
import type { Evaluation } from './evaluate.ts'
import type { Services } from './services.ts'

/** Takes into account that a prompt of so many tokens was answered. */
export function noteSuccess(
  services: Services,
  evaluation: Evaluation,
  of: ModelAt,
  promptTokens: number,
): void {
  const { windows, emit } = services
  windows.succeed(of, promptTokens)
  const { reductions } = evaluation.runState
  const key = { upstream: of.upstream.name, model: keptName(of.model) }
  if (reductions === undefined || succeedInSession(reductions, key, promptTokens) === reductions) return
  evaluation.handle
    .changeContexts((contexts) => ({
      ...contexts,
      reductions: succeedInSession(contexts.reductions, key, promptTokens),
    }))
    .catch(() => emit({ kind: 'failed_open', reason: 'store' }))
}
