#!/usr/bin/env bash
# Reverse proxies of Node before a model API, with a client that gives up: its user pressed stop, or its time limit passed.
#
# Seen on Node 20.20; what becomes of the request to the provider, which is paid for as long as it runs:
#                                      before the answer begins     in a streamed answer
#   http-proxy 1.18.1                  goes on                      goes on
#   http-proxy-middleware 3.0.11       goes on                      is ended
#   @fastify/http-proxy 11.6.3         goes on                      is ended
#   hono/proxy 4.13, http-proxy-3 1.23.3, express-http-proxy 2.1.2: is ended in both
# With two of the three that let it go on a trial with a stream finds nothing, while every answer that is asked for whole, and every stream that is
# given up while the model still thinks, is generated to its end for nobody. npm gives Node 20 that http-proxy-middleware; 4.2.1,
# which asks for Node 22, ends both.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error http-proxy@1.18.1 http-proxy-3@1.23.3 http-proxy-middleware@3.0.11 \
  express@5.3.0 express-http-proxy@2.1.2 fastify@5.12.8 @fastify/http-proxy@11.6.3 hono@4.13.19 @hono/node-server@2.1.9
cat >run.mjs <<'JS'
import { once } from 'node:events'
import http from 'node:http'
import fastifyProxy from '@fastify/http-proxy'
import { serve } from '@hono/node-server'
import express from 'express'
import expressProxy from 'express-http-proxy'
import fastify from 'fastify'
import { Hono } from 'hono'
import { proxy as honoProxy } from 'hono/proxy'
import httpProxy from 'http-proxy'
import { createProxyServer } from 'http-proxy-3'
import { createProxyMiddleware } from 'http-proxy-middleware'
import { verdict } from './server.mjs'

async function listen(server) {
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return server.address().port
}

/** The provider never ends an answer; `asked` tells of each request when it has come, and whether the proxy then ends it. */
let asked
const provider = http.createServer(async (request, reply) => {
  let text = ''
  for await (const piece of request) text += piece
  const ended = Promise.race([
    once(reply, 'close').then(() => 'is ended'),
    new Promise((resolve) => setTimeout(resolve, 3000, 'goes on')),
  ])
  if (JSON.parse(text).stream) {
    reply.writeHead(200, { 'content-type': 'text/event-stream' })
    reply.write('data: {}\n\n')
  }
  asked({ ended })
})
const target = `http://127.0.0.1:${await listen(provider)}`

const web = (proxy) => {
  proxy.on('error', () => {})
  return listen(http.createServer((request, reply) => proxy.web(request, reply)))
}
const hono = (handler) =>
  new Promise((resolve) => {
    const app = new Hono().all('*', handler)
    serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }, ({ port }) => resolve(port))
  })
const proxies = {
  none: () => provider.address().port,
  'http-proxy': () => web(httpProxy.createProxyServer({ target })),
  'http-proxy-3': () => web(createProxyServer({ target })),
  'http-proxy-middleware': () => listen(http.createServer(express().use(createProxyMiddleware({ target })))),
  'express-http-proxy': () => listen(http.createServer(express().use(expressProxy(target)))),
  '@fastify/http-proxy': async () => {
    const app = fastify()
    app.register(fastifyProxy, { upstream: target })
    await app.listen({ port: 0, host: '127.0.0.1' })
    return app.server.address().port
  },
  'hono/proxy': () => hono((c) => honoProxy(target, c.req)),
}

async function giveUp(port, stream) {
  const arrived = new Promise((resolve) => {
    asked = resolve
  })
  const controller = new AbortController()
  const url = `http://127.0.0.1:${port}/v1/chat/completions`
  const headers = { 'content-type': 'application/json' }
  const body = JSON.stringify({ stream })
  const reply = fetch(url, { method: 'POST', headers, body, signal: controller.signal })
  reply.catch(() => {})
  const { ended } = await arrived
  if (stream) await (await reply).body.getReader().read()
  controller.abort()
  return ended
}

const seen = {}
for (const [name, start] of Object.entries(proxies)) {
  const port = await start()
  seen[name] = { whole: await giveUp(port, false), streamed: await giveUp(port, true) }
}
const never = { whole: 'goes on', streamed: 'goes on' }
const streams = { whole: 'goes on', streamed: 'is ended' }
const always = { whole: 'is ended', streamed: 'is ended' }
verdict(seen, {
  none: always,
  'http-proxy': never,
  'http-proxy-3': always,
  'http-proxy-middleware': streams,
  'express-http-proxy': always,
  '@fastify/http-proxy': streams,
  'hono/proxy': always,
})
process.exit()
JS
node run.mjs
