import type { Upstream } from '../../http/upstream.ts'
import type { Emit, UnpricedHandling } from '../../telemetry/event.ts'

/** Reports once for each upstream and model that its price is unknown. `handling`: unset where there is no limit on cost. */
export type NoteUnpricedModel = (
  model: string,
  upstream: Upstream,
  handling: UnpricedHandling | undefined,
) => void

/** Clients choose the names of models, so their number is bounded; further models are not reported. */
const MAX_NOTED = 1_000

export function createUnpricedModels(emit: Emit): NoteUnpricedModel {
  const noted = new Set<string>()
  return (model, { name }, handling) => {
    const key = `${handling} ${name} ${model.slice(0, 200)}`
    if (noted.has(key) || noted.size >= MAX_NOTED) return
    noted.add(key)
    emit({ kind: 'unpriced_model', upstream: name, model, handling })
  }
}
