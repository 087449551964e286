/** The connections to all upstreams. No start needs undici, more than a quarter of the code that it would load. */
import type { Transport, TransportSettings } from './transport.ts'

/** Returns a transport that loads undici at `load`, or at the first request, which waits for it. */
export function createLazyTransport(
  settings: TransportSettings,
): Transport & { readonly load: () => Promise<unknown> } {
  let transport: Transport | undefined
  let loading: Promise<Transport> | undefined
  const load = () => {
    loading ??= import('./transport.ts').then(({ createTransport }) => {
      transport = createTransport(settings)
      return transport
    })
    return loading
  }
  return {
    load,
    dispatch(options, handler) {
      if (transport) return transport.dispatch(options, handler)
      load()
        .then((loaded) => loaded.dispatch(options, handler))
        .catch((error: Error) => handler.onError?.(error))
      return true
    },
    destroy: async () => (await loading)?.destroy(),
  }
}
