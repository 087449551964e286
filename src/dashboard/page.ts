/** Serves the live page: three files without data, so that everyone may load them. */
import { existsSync, readFileSync } from 'node:fs'
import type { FastifyInstance, FastifyRequest } from 'fastify'

/** Where the build puts them: beside the bundle; seen from here, in dist. */
const FOLDERS = ['./dashboard/', '../../dist/dashboard/'] as const

function read(name: string): string {
  for (const folder of FOLDERS) {
    const url = new URL(`${folder}${name}`, import.meta.url)
    if (existsSync(url)) return readFileSync(url, 'utf8')
  }
  throw new Error(`${name} of the live page is missing: run npm run build`)
}

const HEADERS = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-cache',
}

const FILES = { 'page.js': 'text/javascript; charset=utf-8', 'page.css': 'text/css; charset=utf-8' } as const

/** Registers the routes. The page has status 401, and asks for the token, where a request may not read sessions. */
export async function livePage(app: FastifyInstance, { mayRead }: { mayRead: (request: FastifyRequest) => boolean }) {
  app.get('/governor', (_request, reply) => reply.headers(HEADERS).redirect('/governor/', 308))
  app.get('/governor/', (request, reply) => {
    reply.code(mayRead(request) ? 200 : 401).headers(HEADERS)
    return reply.type('text/html; charset=utf-8').send(read('page.html'))
  })
  for (const [name, type] of Object.entries(FILES))
    app.get(`/governor/${name}`, (_request, reply) => reply.headers(HEADERS).type(type).send(read(name)))
}
