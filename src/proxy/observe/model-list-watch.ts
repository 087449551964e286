/** Reads context windows from the lists of models that clients ask for. */
import { parseForeign } from '../../core/foreign-json.ts'
import { decoded } from '../../http/body.ts'
import { headerOf } from '../../http/headers.ts'
import type { Head, UpstreamCall } from '../../http/upstream.ts'
import type { ResponseObserver } from '../../http/upstream-response.ts'
import type { Route } from '../door/route.ts'
import { declaredWindows } from '../overflow/model-list.ts'
import type { Services } from '../services.ts'

/** Bytes; a longer list is not read. */
const MAX_LIST = 1_048_576
const MAX_DECODED = 4 * MAX_LIST

/** Returns true if a request is a GET of the list of models or of one model. */
export function asksForModels({ method, path }: UpstreamCall): boolean {
  return method === 'GET' && /\/models(?:\/[^?#]{1,200})?(?:[?#]|$)/.test(path)
}

async function readList(services: Services, { upstream }: Route, bytes: Buffer, coding: string | undefined) {
  const plain = await decoded(bytes, coding, MAX_DECODED)
  if (!plain) return
  for (const { model, window } of declaredWindows(parseForeign(plain.toString(), MAX_DECODED))) {
    services.windows.declare({ upstream, model }, window)
  }
}

/** Returns a function that creates an observer for a response: it keeps a list by reference and reads it at the end. */
export function observeModelList(services: Services, route: Route) {
  return ({ status, headers }: Head): ResponseObserver | undefined => {
    if (status !== 200 || !/json/i.test(headerOf(headers, 'content-type') ?? '')) return undefined
    let chunks: Buffer[] | undefined = []
    let length = 0
    return {
      take(chunk) {
        length += chunk.length
        if (length > MAX_LIST) chunks = undefined
        chunks?.push(chunk)
        return undefined
      },
      end() {
        if (!chunks) return
        const coding = headerOf(headers, 'content-encoding')
        // A body that is not a list of models is no error.
        readList(services, route, Buffer.concat(chunks, length), coding).catch(() => undefined)
      },
    }
  }
}
