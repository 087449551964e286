/** The server in which several replicas remember sessions. */
import { existsSync } from 'node:fs'
import * as z from 'zod'
import { duration, key, section } from './units.ts'

/** A shorter time than this passes in the process itself, when it is busy. */
const MIN_TIMEOUT = 5

const pemFile = z
  .string()
  .refine((file) => file === '' || existsSync(file), 'expected the path of a PEM file: no such file')

const redisUrl = z.url({ protocol: /^rediss?$/, error: 'expected a redis:// or rediss:// URL' })

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
        'Addresses of the Sentinels, with their user and password if they ask for one.',
      ),
    })
    .refine(({ name, nodes }) => nodes.length === 0 || name !== '', {
      path: ['name'],
      error: 'expected the name under which the Sentinels watch the server',
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
    ca: key(pemFile, '').describe(
      'PEM file of the certificate authority of the server, if Node does not know it. Any file here encrypts the ' +
        'connection, as rediss:// does.',
    ),
    cert: key(pemFile, '').describe("PEM file of Governor's own certificate, for a server that asks for one."),
    key: key(pemFile, '').describe('PEM file of the key of that certificate.'),
  }).describe('Files for an encrypted connection.'),
})
