/** Reads context windows from the lists of models that clients ask for. */
import { isWindow, windowAfterListing } from '../../core/context-window.ts'
import { parseForeign, propertyOf, textOf } from '../../core/json-object.ts'
import { decoded } from '../../http/body.ts'
import { contentEncoding, headerOf } from '../../http/headers.ts'
import type { Head, UpstreamCall } from '../../http/upstream.ts'
import type { ResponseObserver } from '../../http/upstream-response.ts'
import type { Exchange } from '../begin-exchange.ts'

/** Fields that hold a window; those for prompt and answer together come first. */
const FIELDS = [
  'max_model_len',
  'context_length',
  'context_window',
  'contextWindow',
  'max_context_length',
  'loaded_context_length',
  'max_context_window',
  'context_size',
  'n_ctx',
  'inputTokenLimit',
  'max_input_tokens',
  'limits.max_context_length',
  'limits.context_window',
  'capabilities.limits.max_context_window_tokens',
  'capabilities.context_length',
  'token_limits.context_window',
  'meta.n_ctx',
  'top_provider.context_length',
  'model_info.max_input_tokens',
]

/** Fields with the window that is loaded or served, which may be smaller than the model's. */
const SERVED_FIELDS = ['loaded_context_length', 'top_provider.context_length', 'meta.n_ctx']

const MAX_MODELS = 2_000
const NAMES = ['id', 'model', 'name', 'model_name']
const MAX_NAME = 200

function windowsIn(entry: unknown, fields: readonly string[]): number[] {
  const found: number[] = []
  for (const field of fields) {
    const value = field.split('.').reduce(propertyOf, entry)
    const tokens = typeof value === 'string' && /^\d{1,9}$/.test(value) ? Number(value) : value
    if (typeof tokens === 'number' && isWindow(tokens)) found.push(tokens)
  }
  return found
}

/** Returns models, by the names that clients use, and their windows in tokens, from a parsed list or single model. */
export function declaredWindows(body: unknown) {
  const list = Array.isArray(body) ? body : (propertyOf(body, 'data') ?? propertyOf(body, 'models') ?? [body])
  const found: { model: string; window: number }[] = []
  for (const entry of Array.isArray(list) ? list.slice(0, MAX_MODELS) : []) {
    const name = NAMES.map((key) => textOf(propertyOf(entry, key))).find((one) => one && one.length <= MAX_NAME)
    const [window] = windowsIn(entry, FIELDS)
    if (!name || window === undefined) continue
    // Google writes the collection before the name.
    const model = name.replace(/^models\//, '')
    found.push({ model, window: Math.min(window, ...windowsIn(entry, SERVED_FIELDS)) })
  }
  return found
}

/** Bytes; a longer list is not read. */
const MAX_LIST = 1_048_576
const MAX_DECODED = 4 * MAX_LIST

/** Returns an observer that reads a list of models, or one model, at its end; `undefined` for other responses. */
export function observeModelList(
  { services, route: { upstream } }: Exchange,
  { method, path }: UpstreamCall,
  { status, headers }: Head,
): ResponseObserver | undefined {
  const isAsked = method === 'GET' && /\/models(?:\/[^?#]{1,200})?(?:[?#]|$)/.test(path)
  if (!isAsked || status !== 200 || !/json/i.test(headerOf(headers, 'content-type') ?? '')) return undefined
  const chunks: Buffer[] = []
  let length = 0
  return {
    take(chunk) {
      length += chunk?.length ?? 0
      if (chunk && length <= MAX_LIST) chunks.push(chunk)
      return undefined
    },
    async end() {
      if (length > MAX_LIST) return
      try {
        const plain = await decoded(Buffer.concat(chunks), contentEncoding(headers), MAX_DECODED)
        const models = plain ? declaredWindows(parseForeign(plain.toString(), MAX_DECODED)) : []
        for (const { model, window } of models) services.windows.change({ upstream, model }, windowAfterListing, window)
      } catch {
        // A body that is not a list of models is no error.
      }
    },
  }
}
