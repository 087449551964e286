/** What operators ask: is it alive, does it take requests, what has it done. */
import type { FastifyPluginCallback } from 'fastify'

export interface OpsSources {
  readonly version: string
  /** False while draining: requests under way go on, new ones should go elsewhere. */
  readonly isReady: () => boolean
  readonly metrics: () => Promise<{ readonly contentType: string; readonly text: string }>
}

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
