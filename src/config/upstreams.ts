/** Where requests go: the URLs, keys and headers of upstreams. */
import * as z from 'zod'
import { headerName } from './units.ts'

/** First path segments that are Governor's own, so that no upstream can be named so. */
export const RESERVED_NAMES: readonly string[] = ['health', 'ready', 'metrics', 'governor']

/** What may stand in a header: no control characters, and no white space around it (RFC 9110, section 5.5). */
const HEADER_VALUE = /^[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?$/

/** Fields that belong to a connection or to one body: no request could be sent with a fixed one. */
const NOT_FIXED = new Set([
  'connection',
  'content-length',
  'expect',
  'keep-alive',
  'transfer-encoding',
  'upgrade',
])

const upstream = z.strictObject({
  url: z
    .url({ protocol: /^https?$/, error: 'expected an http:// or https:// URL' })
    .refine((url) => !/^[^/]*\/\/[^/]*@/.test(url), {
      error: 'expected no user name or password in it: api_key and headers are for keys',
    })
    .refine((url) => !/[?#]/.test(url), {
      error: "expected a URL that ends with its path: queries are the requests' own",
    })
    .refine((url) => !/\/(?:chat\/completions|v1\/messages|v1\/responses)\/*$/.test(url), {
      error: "expected the base of the API: the rest of the path is the requests' own",
    })
    .describe('Where requests go. A path in it is put before theirs; a trailing /v1 is not doubled.'),
  api_key: z
    .string()
    .regex(HEADER_VALUE, { error: 'expected a key without line breaks or white space around it' })
    .optional()
    .describe(
      "Sent upstream in place of the client's credential. Then server.access_keys says who may use it.",
    ),
  headers: z
    .record(
      headerName.refine((name) => !NOT_FIXED.has(name.toLowerCase()), {
        error: 'set by Governor for each request: expected another header',
      }),
      z.string().refine((value) => value === '' || HEADER_VALUE.test(value), {
        error: 'expected a header value, on one line',
      }),
    )
    .default({})
    .describe(
      'Headers set on every request to this upstream, in place of those of the same name. One whose name says key, token, secret, auth, cookie, credential or password holds a key, as api_key does.',
    ),
  strip_name: z
    .boolean()
    .default(false)
    .describe(
      'Take the name openai or anthropic off the front of paths also where the url is not the public one of OpenAI or Anthropic. Other names are always taken off.',
    ),
})

/** One upstream's checked settings. */
export type UpstreamConfig = z.output<typeof upstream>

/** Those that are always there. */
export const DEFAULT_UPSTREAMS: Record<string, UpstreamConfig> = {
  openai: { url: 'https://api.openai.com', headers: {}, strip_name: false },
  anthropic: { url: 'https://api.anthropic.com', headers: {}, strip_name: false },
}

export const upstreams = z
  .record(
    z
      .string()
      .regex(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/, 'expected a name of letters, digits, - and _')
      .refine((name) => !RESERVED_NAMES.includes(name), {
        error: `a name of Governor's own paths: expected any but ${RESERVED_NAMES.join(', ')}`,
      })
      .refine((name) => !/^v\d+$/.test(name), { error: 'looks like an API version: expected another name' }),
    upstream,
  )
  .prefault({})
  .transform((given): Record<string, UpstreamConfig> => ({ ...DEFAULT_UPSTREAMS, ...given }))
  .describe(
    'Where requests go, by name. The first path segment picks one (/NAME/v1/…); without one, Anthropic requests go to `anthropic` and all others to `openai`.',
  )
