/** @fastify/http-proxy as its manual shows it; the third argument is the folder that it is installed in. */
import { createRequire } from 'node:module'
import { join } from 'node:path'
import fastify from 'fastify'

const [port, upstreamPort, peers] = process.argv.slice(2)
const proxy = createRequire(join(peers, 'peers.js'))('@fastify/http-proxy')
const app = fastify({ bodyLimit: 64 * 1024 * 1024 })

app.register(proxy, { upstream: `http://127.0.0.1:${upstreamPort}` })
await app.listen({ host: '127.0.0.1', port: Number(port) })
