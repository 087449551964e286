import type { Upstream } from '../http/upstream.ts'
import type { Emit } from '../telemetry/event.ts'

/** Says once for each upstream and model that nothing is known of its price, though there is a limit on it. */
export type NoteUnpricedModel = (model: string, upstream: Upstream) => void

/** Model names are the client's to choose: more of them are not told apart. */
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
