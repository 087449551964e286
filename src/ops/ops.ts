/** The routes for operators: `/health`, `/ready` and `/metrics`. */
import type { FastifyPluginAsync } from 'fastify'
import { type AdminSettings, adminAccess, unauthorized } from './admin-access.ts'

interface OpsSources {
  readonly version: string
  /** False while Governor drains: new requests should go elsewhere. */
  readonly isReady: () => boolean
  /** Returns where sessions are stored, and whether the store can be reached. Governor accepts requests either way. */
  readonly store: () => { readonly kind: string; readonly status: 'ok' | 'degraded' }
  /** Returns how much operators have paused, if anything. */
  readonly paused: () => 'all' | 'part' | undefined
  readonly access: AdminSettings
  readonly metrics: () => Promise<{ readonly contentType: string; readonly text: string }>
}

export const ops: FastifyPluginAsync<OpsSources> = async (app, sources) => {
  app.get('/health', () => ({ status: 'ok', version: sources.version }))
  app.get('/ready', (_request, reply) => {
    const isReady = sources.isReady()
    const status = isReady ? 'ready' : 'draining'
    return reply.code(isReady ? 200 : 503).send({ status, store: sources.store(), paused: sources.paused() })
  })
  app.get('/metrics', async (request, reply) => {
    const { access } = sources
    const isOpen = access.metrics_public || access.admin_token === undefined
    if (!isOpen && !adminAccess(request.raw, access)) return unauthorized(reply, access)
    const { contentType, text } = await sources.metrics()
    return reply.header('content-type', contentType).send(text)
  })
}
