/** Reads the HTTP proxies for upstreams from the environment. */
import { ConfigError, type Environment } from '../config/load.ts'
import type { Proxies } from '../http/transport.ts'

const SCHEMES: readonly string[] = ['http:', 'https:', 'socks5:', 'socks:']

/** Reads a variable, in lower case first. As in curl, a host without a scheme is an HTTP proxy. Throws `ConfigError`. */
function proxyIn(env: Environment, name: string): string | undefined {
  const value = env[name.toLowerCase()] || env[name]
  if (!value) return undefined
  const url = value.includes('://') ? value : `http://${value}`
  // The message does not show the value, which may hold a password.
  if (!URL.canParse(url) || !SCHEMES.includes(new URL(url).protocol))
    throw new ConfigError(`${name}: not the URL of a proxy: expected one such as http://proxy.example:3128`)
  return url
}

/** Returns the proxies; `undefined` if the environment names none. Throws `ConfigError`. */
export function proxiesIn(env: Environment): Proxies | undefined {
  const http = proxyIn(env, 'HTTP_PROXY')
  const https = proxyIn(env, 'HTTPS_PROXY')
  if (http === undefined && https === undefined) return undefined
  return { http, https, noProxy: env['no_proxy'] ?? env['NO_PROXY'] }
}
