/** The server in which several replicas remember sessions. */
import { readFileSync } from 'node:fs'
import * as z from 'zod'
import { whyUnreadable } from '../core/thrown.ts'
import { duration, key, section } from './units.ts'

/** A shorter time than this passes in the process itself, when it is busy. */
const MIN_TIMEOUT = 5

const PEM = {
  certificate: /-----BEGIN (?:[A-Z0-9]+ )?CERTIFICATE-----/,
  key: /-----BEGIN (?:[A-Z0-9]+ )?PRIVATE KEY-----/,
}

/** Returns why a file can't be used as a certificate or as its key; `undefined` if it may be one. */
function pemProblem(file: string, kind: keyof typeof PEM): string | undefined {
  try {
    const text = readFileSync(file, 'latin1')
    const isEncrypted = /BEGIN ENCRYPTED|^Proc-Type: 4,ENCRYPTED/m.test(text)
    // A certificate may stand beside a key that is not read.
    if (isEncrypted && (kind === 'key' || !PEM[kind].test(text)))
      return 'is encrypted: expected a key without a passphrase'
    return PEM[kind].test(text) ? undefined : `expected the path of a PEM file: there is no ${kind} in it`
  } catch (error) {
    return `expected the path of a PEM file: ${whyUnreadable(error)}`
  }
}

/** A file of the connection is looked at now: without it a connection would fail for a reason far from it. */
const pemFile = (kind: keyof typeof PEM) =>
  z.string().superRefine((file, context) => {
    const message = file === '' ? undefined : pemProblem(file, kind)
    if (message) context.addIssue({ code: 'custom', message })
  })

/** Returns whether the client can read user, password and database in an address. */
function isReadable(text: string): boolean {
  if (!URL.canParse(text)) return true
  const { username, password, pathname } = new URL(text)
  try {
    decodeURIComponent(username + password)
  } catch {
    return false
  }
  return /^(?:\/\d*)?$/.test(pathname)
}

const REDIS_URL = 'expected a redis:// or rediss:// URL'

const redisUrl = z
  .url({
    protocol: /^rediss?$/,
    error: ({ input }) =>
      String(input).includes('@') ? `${REDIS_URL}; in a password, write % / ? # @ as %25 %2F %3F %23 %40` : REDIS_URL,
  })
  .refine(isReadable, 'expected redis://USER:PASSWORD@HOST:PORT/DATABASE, a number last; in a password, write % as %25')

export const redis = z.strictObject({
  url: key(redisUrl, 'redis://127.0.0.1:6379').describe(
    'Address of the server, as redis://USER:PASSWORD@HOST:PORT/DATABASE; rediss:// encrypts. The environment ' +
      'variable REDIS_URL comes before it.',
  ),
  username: key(z.string(), '').describe("User of the server's access control list. If it is empty, the URL decides."),
  password: key(z.string(), '').describe('Password of that user. If it is empty, the URL decides.'),
  cluster: key(z.array(redisUrl), []).describe(
    'Addresses of some servers of a Redis Cluster, in place of url. User and password of the first count for all. ' +
      'If a part of the cluster fails, only the sessions of that part are counted in memory; that takes ' +
      'cluster-require-full-coverage no.',
  ),
  sentinel: z
    .strictObject({
      name: key(z.string(), '').describe('The name under which the Sentinels watch the server.'),
      nodes: key(z.array(redisUrl), []).describe(
        'Addresses of the Sentinels. User and password of the first count for all; rediss:// encrypts the ' +
          'connection to the server, too.',
      ),
    })
    .refine(({ name, nodes }) => nodes.length === 0 || name !== '', {
      path: ['name'],
      error: 'expected the name under which the Sentinels watch the server',
    })
    .refine(({ name, nodes }) => name === '' || nodes.length > 0, {
      path: ['nodes'],
      error: 'expected the addresses of the Sentinels',
    })
    .prefault({})
    .describe('Redis Sentinel, in place of the address in url; user and password of url count for the server itself.'),
  timeout: key(
    duration.refine((ms) => ms >= MIN_TIMEOUT, `expected at least ${MIN_TIMEOUT}ms`),
    '50ms',
  ).describe(
    'Time that a request waits for the server. If an answer takes longer, the request is counted in memory; after ' +
      'three in a row Governor continues without the server until it answers again.',
  ),
  prefix: key(
    z
      .string()
      .max(100)
      .regex(/^[^{}\s]*$/, 'expected a text without braces and white space'),
    'governor:',
  ).describe('Beginning of all keys and channels. Replicas with the same prefix share their sessions.'),
  tls: section({
    ca: key(pemFile('certificate'), '').describe(
      'PEM file of the certificate authority of the server, if Node does not know it. Any file here encrypts the ' +
        'connection, as rediss:// does.',
    ),
    cert: key(pemFile('certificate'), '').describe(
      "PEM file of Governor's own certificate, for a server that asks for one.",
    ),
    key: key(pemFile('key'), '').describe('PEM file of the key of that certificate.'),
  })
    .superRefine(({ cert, key: own }, context) => {
      const missing = cert === '' ? 'cert' : 'key'
      if ((cert === '') !== (own === ''))
        context.addIssue({
          code: 'custom',
          path: [missing],
          message: 'expected a file: certificate and key go together',
        })
    })
    .describe('Files for an encrypted connection.'),
})
