import type { Upstream } from '../http/upstream.ts'
import type { Emit } from '../telemetry/event.ts'

/** Reports once for each upstream and model that its price is unknown although there is a limit on cost. */
export type NoteUnpricedModel = (model: string, upstream: Upstream) => void

/** Clients choose the names of models, so their number is bounded; further models are not reported. */
const MAX_NOTED = 1_000

export function createUnpricedModels(emit: Emit): NoteUnpricedModel {
  const noted = new Set<string>()
  return (model, { name }) => {
    const key = `${name} ${model.slice(0, 200)}`
    if (noted.has(key) || noted.size >= MAX_NOTED) return
    noted.add(key)
    emit({ kind: 'unpriced_model', upstream: name, model })
  }
}
