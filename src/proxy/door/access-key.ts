/** Access keys: which one a client has sent, and the models that it may use. */

import type { Readable } from 'node:stream'
import { sha256Of } from '../../core/hash.ts'
import { decodedPath } from '../../core/text/decoded-path.ts'
import { matchesAny } from '../../core/text/glob.ts'
import { DIALECTS } from '../../dialect/index.ts'
import { leaseFor, readBody, streamOf, unpacked } from '../../http/body.ts'
import { reply } from '../../http/client.ts'
import { clientKeysOf } from '../../http/credentials.ts'
import { contentEncoding, type RawHeaders } from '../../http/headers.ts'
import { segmentsOf } from '../../http/urls.ts'
import type { Exchange } from '../begin-exchange.ts'
import type { Services } from '../services.ts'
import type { Route } from './route.ts'

/** Returns the access key that a request has; `undefined` if it has none. */
export function accessKeyOf(services: KeySources, { path }: Pick<Route, 'path'>, headers: RawHeaders) {
  const { accessKeys, credentialPlaces } = services
  if (accessKeys.size === 0) return undefined
  for (const key of clientKeysOf(headers, path, credentialPlaces)) {
    // Hashes are compared, so that the time it takes reveals nothing.
    const known = accessKeys.get(sha256Of(key))
    if (known) return { ...known, key }
  }
  return undefined
}

type KeySources = Pick<Services, 'accessKeys' | 'credentialPlaces'>

/** Returns the segments of a path as a server may read it that follows its dots. */
function resolved(path: string): string[] {
  const kept: string[] = []
  for (const segment of segmentsOf(decodedPath(path).replaceAll('\\', '/'))) {
    if (segment === '..') kept.pop()
    else if (segment !== '.') kept.push(segment)
  }
  return kept
}

/** Returns what a path of Azure calls (`…/openai/deployments/NAME/…`): it counts whatever the body says. */
function deploymentIn({ path }: Pick<Route, 'path'>): string | undefined {
  const segments = resolved(path.split('?', 1)[0] ?? '')
  const isName = (_: string, at: number) => /^openai\/deployments$/i.test(segments.slice(at - 2, at).join('/'))
  return segments.find(isName)
}

/** Returns whether the key of a request allows its model; notes the model where the key allows some only. */
export function allowsModel(x: Exchange, named: string): boolean {
  if (!allowsSome(x)) return true
  const model = deploymentIn(x.route) ?? named
  // A server may take a backslash in a path for a slash, and follow the dots behind it: no name has one.
  x.allowed = { model, isAllowed: !model.includes('\\') && matchesAny(x.accessKey?.models ?? [], model) }
  return x.allowed.isAllowed
}

/** True if the key of a request allows some models only. */
export function allowsSome({ accessKey }: Pick<Exchange, 'accessKey'>): boolean {
  return accessKey !== undefined && accessKey.models.length > 0
}

/** Returns true after a 403 for a request whose key does not allow its model, or whose model is not known. */
export function refuseModel(x: Exchange): boolean {
  const { client, route } = x
  if (!allowsSome(x)) return false
  if (!x.allowed && deploymentIn(route) !== undefined) allowsModel(x, '')
  const { allowed } = x
  if (allowed?.isAllowed) return false
  x.outcome = 'refused'
  client.body.resume()
  const model = allowed?.model ? `the model ${allowed.model.slice(0, 100)}` : 'a model that Governor cannot read'
  const message = `This access key may not use ${model}: it has server.access_keys models.`
  reply(client, 403, 'application/json', route.api.errorBody('forbidden', message, 'model_not_allowed', 403))
  return true
}

/**
 * Returns the body of an unguarded request, whose key allows only some models, and reads it where it names the model;
 * returns `undefined` after a 403.
 */
export async function allowedBody(x: Exchange): Promise<Buffer | Readable | undefined> {
  const { client, services, route } = x
  if (deploymentIn(route) !== undefined) return refuseModel(x) ? undefined : streamOf(client.body)
  const { headers } = client.head
  const read = await readBody(client, services.maxGuardedBody, leaseFor(services.buffers, client))
  const json = Buffer.isBuffer(read)
    ? await unpacked(read, contentEncoding(headers), services.maxGuardedBody)
    : undefined
  try {
    const isAllowed =
      Buffer.isBuffer(json) && allowsModel(x, DIALECTS[0]?.modelOf({ path: route.asked, body: json }) ?? '')
    // The path of a Google API (`…/models/NAME:predict`) counts whatever the body says; `count-tokens` is no model.
    const [, inPath] = /^(?!count-tokens:)(.+):/.exec(resolved(route.asked).at(-1) ?? '') ?? []
    if (isAllowed && inPath !== undefined) allowsModel(x, inPath)
  } catch {
    // It is no JSON.
  }
  return refuseModel(x) || !Buffer.isBuffer(read) ? undefined : read
}
