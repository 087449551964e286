/** The proxies that the environment names for upstreams. */
import { ConfigError, type Environment } from '../config/load.ts'
import type { Proxies } from '../http/transport.ts'

const SCHEMES: readonly string[] = ['http:', 'https:', 'socks5:', 'socks:']

/** Reads a variable, in small letters first; as curl has it, a host without a scheme is one of HTTP. */
function proxyIn(env: Environment, name: string): string | undefined {
  const given = env[name.toLowerCase()] || env[name]
  if (!given) return undefined
  const url = given.includes('://') ? given : `http://${given}`
  // What was found may hold a password.
  if (!URL.canParse(url) || !SCHEMES.includes(new URL(url).protocol))
    throw new ConfigError(`${name}: found no proxy's URL: expected one such as http://proxy.example:3128`)
  return url
}

/** `undefined` where the environment names none. @throws {ConfigError} */
export function proxiesIn(env: Environment): Proxies | undefined {
  const http = proxyIn(env, 'HTTP_PROXY')
  const https = proxyIn(env, 'HTTPS_PROXY')
  if (http === undefined && https === undefined) return undefined
  return { http, https, noProxy: env['no_proxy'] ?? env['NO_PROXY'] }
}
