/** Reads the lists of models that pass by: providers say in them how much their models take. */
import { parseForeign } from '../core/foreign-json.ts'
import { decoded } from '../http/body.ts'
import { headerOf } from '../http/headers.ts'
import { declaredWindows } from '../overflow/model-list.ts'
import type { Watch } from './begin-exchange.ts'
import type { Route } from './route.ts'
import type { Services } from './services.ts'

/** A longer list is not read. */
const MAX_LIST = 1_048_576
const MAX_DECODED = 4 * MAX_LIST

/** Does a GET of this path ask for models, or for one of them? */
export function asksForModels(method: string, path: string): boolean {
  return method === 'GET' && /\/models(?:\/[^?#]{1,200})?(?:[?#]|$)/.test(path)
}

/** Keeps a list by reference while it passes, and reads it when it has gone. */
export function createListingWatch(services: Services, { upstream }: Route): Watch {
  const read = async (bytes: Buffer, coding: string | undefined): Promise<void> => {
    const plain = await decoded(bytes, coding, MAX_DECODED)
    if (!plain) return
    for (const { model, window } of declaredWindows(parseForeign(plain.toString(), MAX_DECODED))) {
      services.windows.declare({ upstream, model }, window)
    }
  }
  return {
    watch(_call, receiver) {
      let chunks: Buffer[] | undefined
      let length = 0
      let coding: string | undefined
      return {
        ...receiver,
        start(head, flow) {
          const isList = head.status === 200 && /json/i.test(headerOf(head.headers, 'content-type') ?? '')
          if (isList) chunks = []
          coding = headerOf(head.headers, 'content-encoding')
          receiver.start(head, flow)
        },
        data(chunk) {
          length += chunk.length
          if (length > MAX_LIST) chunks = undefined
          chunks?.push(chunk)
          receiver.data(chunk)
        },
        end(trailers) {
          receiver.end(trailers)
          // What is no list says nothing, and is nobody's fault.
          if (chunks) read(Buffer.concat(chunks, length), coding).catch(() => undefined)
        },
      }
    },
  }
}
