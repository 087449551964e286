/** The least that a server with Fastify can be: it says that it is alive. */
import fastify from 'fastify'

const app = fastify()
app.get('/health', () => ({ status: 'ok' }))
await app.listen({ host: '127.0.0.1', port: Number(process.argv[2]) })
