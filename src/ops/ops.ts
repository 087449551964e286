/** The routes for operators: `/health`, `/ready` and `/metrics`. */
import type { FastifyPluginCallback } from 'fastify'

/** The facts that the ops routes return. */
export interface OpsSources {
  readonly version: string
  /** False while Governor drains: new requests should go elsewhere. */
  readonly isReady: () => boolean
  /** Renders the metrics. */
  readonly metrics: () => Promise<{ readonly contentType: string; readonly text: string }>
}

/** Registers the ops routes. */
export const ops: FastifyPluginCallback<OpsSources> = (app, sources, done) => {
  app.get('/health', () => ({ status: 'ok', version: sources.version }))
  app.get('/ready', (_request, reply) => {
    const isReady = sources.isReady()
    return reply
      .code(isReady ? 200 : 503)
      .send({ status: isReady ? 'ready' : 'draining', store: { kind: 'memory', status: 'ok' } })
  })
  app.get('/metrics', async (_request, reply) => {
    const { contentType, text } = await sources.metrics()
    return reply.header('content-type', contentType).send(text)
  })
  done()
}
