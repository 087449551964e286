/** The URLs, keys and headers of upstreams. */
import * as z from 'zod'
import { BUILT_IN_UPSTREAMS } from '../dialect/index.ts'
import { flag, headerName, key, optional } from './units.ts'

/** First segments of Governor's own paths: no upstream may have such a name. */
export const RESERVED_NAMES: readonly string[] = ['health', 'ready', 'metrics', 'governor']

/** A header value: no control characters, and no white space around it (RFC 9110, section 5.5). */
const HEADER_VALUE = /^[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?$/

/** Headers that belong to a connection or to one body: a fixed value would break requests. */
const NOT_FIXED = new Set(['connection', 'content-length', 'expect', 'keep-alive', 'transfer-encoding', 'upgrade'])

const URL_EXPECTED = 'expected an http:// or https:// URL'

const upstream = z.strictObject({
  url: z
    .url({ protocol: /^https?$/, error: URL_EXPECTED })
    .refine(
      (url) => !/^[^/]*\/\/[^/]*@/.test(url),
      'expected a URL without user name and password: put keys into api_key or headers',
    )
    .refine((url) => !/[?#]/.test(url), 'expected a URL without a query: requests bring their own')
    .refine(
      (url) => !/\/(?:chat\/completions|v1\/messages|v1\/responses)\/*$/.test(url),
      'expected the base URL of the API: requests bring the rest of the path',
    )
    .optional()
    .describe('Base URL of the provider. Its path goes before the path of the request; a trailing /v1 is not doubled.'),
  api_key: optional(
    z.string().regex(HEADER_VALUE, 'expected a key without line breaks or white space around it'),
    `\${NAME_API_KEY}`,
  ).describe(
    "Key that Governor sends in place of the client's credential. With a key here, server.access_keys says who may " +
      'use it.',
  ),
  headers: key(
    z.record(
      headerName.refine(
        (name) => !NOT_FIXED.has(name.toLowerCase()),
        'set by Governor for each request: expected another header',
      ),
      z.string().refine((value) => value === '' || HEADER_VALUE.test(value), 'expected a header value, on one line'),
    ),
    {},
  ).describe(
    'Headers that Governor sets on every request to this upstream, in place of headers of the same name. A header ' +
      'whose name says key, token, secret, auth, cookie, credential or password holds a key, as api_key does.',
  ),
  strip_name: flag(false).describe(
    'Remove `openai`, `anthropic` or `gemini` from the beginning of paths even if the URL is not the public one. ' +
      'Other hosts have paths that begin so (/openai/v1, /openai/deployments). Governor always removes other names.',
  ),
})

/** The upstreams that always exist. */
export const DEFAULT_UPSTREAMS: Record<string, z.output<typeof upstream> & { readonly url: string }> =
  Object.fromEntries(BUILT_IN_UPSTREAMS.map(({ name, url }) => [name, { url, headers: {}, strip_name: false }]))

export const upstreams = z
  .record(
    z
      .string()
      .regex(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/, 'expected a name of letters, digits, - and _')
      .refine(
        (name) => !RESERVED_NAMES.includes(name),
        `reserved for Governor's own paths: expected a name other than ${RESERVED_NAMES.join(', ')}`,
      )
      .refine((name) => !/^v\d+$/.test(name), 'looks like an API version: expected another name'),
    upstream,
  )
  .prefault(DEFAULT_UPSTREAMS)
  .transform((configured, context) => {
    const all = { ...DEFAULT_UPSTREAMS }
    for (const [name, settings] of Object.entries(configured)) {
      // A file may set only a key or headers of the upstreams that always exist.
      const url = settings.url ?? DEFAULT_UPSTREAMS[name]?.url
      if (url === undefined) context.addIssue({ code: 'custom', path: [name, 'url'], message: URL_EXPECTED })
      else all[name] = { ...settings, url }
    }
    return all
  })
  .describe(
    'Where requests go, by name. The first path segment picks an upstream (/NAME/v1/...); without one, requests of ' +
      'Anthropic’s API go to `anthropic`, those of Google’s to `gemini`, and all others to `openai`. An API path ' +
      'behind a name that no upstream has (/NAME/v1/chat/completions) gets 404: its key belongs to somebody else. ' +
      'These three always exist; add as many as you like.',
  )
