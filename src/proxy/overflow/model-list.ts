/** Reads the context windows in the model lists of providers. */
import { isWindow } from '../../core/context-window.ts'

/** A model, by the name that clients use, and its window in tokens. */
export interface DeclaredWindow {
  readonly model: string
  readonly window: number
}

/** Paths of fields that hold a window; those for prompt and answer together come first. */
const FIELDS: readonly (readonly string[])[] = [
  ['max_model_len'],
  ['context_length'],
  ['context_window'],
  ['contextWindow'],
  ['max_context_length'],
  ['loaded_context_length'],
  ['max_context_window'],
  ['context_size'],
  ['n_ctx'],
  ['inputTokenLimit'],
  ['max_input_tokens'],
  ['limits', 'max_context_length'],
  ['limits', 'context_window'],
  ['capabilities', 'limits', 'max_context_window_tokens'],
  ['capabilities', 'context_length'],
  ['token_limits', 'context_window'],
  ['meta', 'n_ctx'],
  ['top_provider', 'context_length'],
  ['model_info', 'max_input_tokens'],
]

/** Paths of fields with the window that is loaded or served, which may be smaller than the model's. */
const SERVED_FIELDS = [['loaded_context_length'], ['top_provider', 'context_length'], ['meta', 'n_ctx']]

const MAX_MODELS = 2_000
const MAX_NAME = 200

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function at(entry: unknown, path: readonly string[]): unknown {
  let value = entry
  for (const key of path) {
    if (!isRecord(value) || !Object.hasOwn(value, key)) return undefined
    value = value[key]
  }
  return value
}

function windowAt(entry: unknown, path: readonly string[]): number | undefined {
  const value = at(entry, path)
  const tokens = typeof value === 'string' && /^\d{1,9}$/.test(value) ? Number(value) : value
  return typeof tokens === 'number' && isWindow(tokens) ? tokens : undefined
}

function windowOf(entry: unknown): number | undefined {
  for (const path of FIELDS) {
    const window = windowAt(entry, path)
    if (window === undefined) continue
    const served = SERVED_FIELDS.flatMap((field) => windowAt(entry, field) ?? [])
    return Math.min(window, ...served)
  }
  return undefined
}

function modelNameOf(entry: unknown): string | undefined {
  for (const key of ['id', 'model', 'name', 'model_name']) {
    const name = at(entry, [key])
    // Google writes the collection before the name.
    if (typeof name === 'string' && name !== '' && name.length <= MAX_NAME)
      return name.replace(/^models\//, '')
  }
  return undefined
}

/** Returns the windows in the parsed body of a list of models, or of a single model. */
export function declaredWindows(body: unknown): DeclaredWindow[] {
  const list = Array.isArray(body) ? body : (at(body, ['data']) ?? at(body, ['models']) ?? [body])
  if (!Array.isArray(list)) return []
  return list.slice(0, MAX_MODELS).flatMap((entry: unknown) => {
    const model = modelNameOf(entry)
    const window = windowOf(entry)
    return model === undefined || window === undefined ? [] : [{ model, window }]
  })
}
