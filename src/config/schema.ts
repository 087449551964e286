/**
 * The configuration: every key with its effect, its default and the reason for it. `config/schema.json` and the
 * table in the README are made from this file.
 */
import * as z from 'zod'
import { isLoopback } from '../core/loopback.ts'
import { DEFAULT_TEXTS } from '../core/notice.ts'
import { budget, budgetOverride, outOfOrder, overrideMatch } from './budget.ts'
import { models } from './models.ts'
import { overflow } from './overflow.ts'
import { overrideShape } from './override.ts'
import { template } from './texts.ts'
import { duration, headerName, size } from './units.ts'
import { upstreams } from './upstreams.ts'

const text = (fallback: string, what: string) => template.default(fallback).describe(what)

const limit = z.int().min(0)

const server = z.strictObject({
  host: z
    .string()
    .min(1)
    .default('127.0.0.1')
    .describe(
      'Address to listen on. Loopback by default: anybody who reaches Governor can use the keys it holds.',
    ),
  port: z.int().min(0).max(65535).default(8787).describe('Port to listen on; 0 takes any free one.'),
  access_keys: z
    .array(z.string().min(1))
    .default([])
    .describe(
      'Keys that clients must send (Authorization: Bearer or x-api-key) for upstreams whose key Governor holds, as api_key or in headers. Empty: anybody who reaches Governor may use them.',
    ),
  allowed_origins: z
    .array(
      z.string().regex(/^(?:\*|null|[a-z][a-z0-9+.*-]*:\/\/[^\s/?#@]+)$/i, {
        error: 'expected an origin such as https://app.example or http://localhost:3000',
      }),
    )
    .default([])
    .describe(
      'Globs of the origins of web pages that may use keys which Governor holds, where no access key is sent. Pages that send a key of their own need not be listed.',
    ),
  allowed_hosts: z
    .array(
      z.string().regex(/^[a-z0-9._*?-]+$/i, {
        error: 'expected a host name without scheme and port',
      }),
    )
    .default([])
    .describe(
      'Globs of names, besides those of the loopback interface, under which Governor may be asked to use keys that it holds while it listens on loopback. Guards against web pages whose host name comes to point here.',
    ),
  max_guarded_body: size
    .prefault('32mb')
    .describe(
      'Request bodies up to this size are read and guarded; larger ones are relayed unread, and counted.',
    ),
  max_buffered: size
    .prefault('512mb')
    .describe(
      'What all bodies together may take that are being read, unpacked or held back; at most half of the memory that the process may use. Without room a request waits up to 2 seconds; then it is relayed unread, and counted.',
    ),
  drain_timeout: duration
    .prefault('30s')
    .describe('How long running responses may go on after SIGTERM before they are cut.'),
  websocket: z
    .enum(['refuse', 'tunnel'])
    .default('refuse')
    .describe(
      'WebSocket upgrades on guarded paths. refuse: 426, upon which clients fall back to POST at once; tunnel: passed through, unguarded. Other paths are always tunnelled.',
    ),
})

const timeouts = z.strictObject({
  connect: duration.prefault('10s').describe('To open a connection to an upstream.'),
  first_byte: duration
    .prefault('30m')
    .describe(
      'From the request to the response headers. Long, as reasoning models are silent for many minutes.',
    ),
  idle: duration.prefault('30m').describe('Between two pieces of a response.'),
  client_idle: duration
    .prefault('60s')
    .describe(
      'For the headers of a request, and then between two pieces of its body. A slow upload that goes on is never ended.',
    ),
})

const stop = z.strictObject({
  text: text(DEFAULT_TEXTS.stop, 'What a stopped run is asked: its final answer, without tools.'),
  fallback_text: text(DEFAULT_TEXTS.fallback, 'The answer of a stopped run whose model gives none.'),
})

const loopGuard = z.strictObject({
  enabled: z.boolean().default(true).describe('Off: loops are not looked for.'),
  mode: z
    .enum(['observe', 'warn', 'enforce'])
    .default('enforce')
    .describe(
      'observe: loops are counted and nothing is said; warn: the model is told; enforce: calls that it repeats in spite of that are refused, and a run that has nothing else to do ends.',
    ),
  repetition_threshold: z
    .int()
    .min(2)
    .max(100)
    .default(3)
    .describe(
      'From how many equal calls with equal results on it is a loop: in a row, or among the last 10 calls with at most one new call between two of them, and none that changes something. Two calls in turn (ABAB) are one after two rounds. After a warning one repetition less is enough.',
    ),
  standstill: z
    .int()
    .min(2)
    .max(100)
    .default(5)
    .describe(
      'From how many responses in a row on it is a loop that bring nothing new: no call with a result that the last calls do not know.',
    ),
  max_warnings_before_block: limit
    .max(1_000)
    .default(2)
    .describe(
      'How many warnings may be ignored, with nothing new in between, before calls are refused; twice as many where all results are 16 characters or less, which can show no progress.',
    ),
  exempt_tools: z
    .array(z.string().min(1))
    .default(['process'])
    .describe(
      'Globs of tools that may be called as often as they like: their calls neither count nor reset.',
    ),
  poll_multiplier: z
    .int()
    .min(1)
    .max(100)
    .default(2)
    .describe(
      'Calls that wait for something may be repeated so many times as often: by their name and the first 300 characters of their arguments (status, poll, wait, watch, tail, sleep), or by a short result that says that work goes on. They are told at growing intervals, and refused only after 40 equal answers within 10 minutes.',
    ),
  same_call_any_result: z
    .int()
    .min(2)
    .max(1_000)
    .default(6)
    .describe(
      'The same call so often in a row is warned about even if its results differ, and never refused for it.',
    ),
  volatile: z
    .enum(['default', 'none'])
    .default('default')
    .describe(
      'What is masked before results are compared. default: dates, clocks, durations, UUIDs, addresses, hex ids and numbers of 7 digits and more (unless they count something), ids by their names (pid, chunk id) and reminders of a harness, with the lines sorted; none: nothing.',
    ),
})

const storm = z.strictObject({
  enabled: z
    .boolean()
    .default(true)
    .describe('Off: each request goes to the provider, however many errors came before.'),
  errors: z
    .int()
    .min(2)
    .max(10_000)
    .default(20)
    .describe(
      'Errors in a row, over at least 60 seconds, from which on requests get the newest one at once.',
    ),
})

/** Names of sessions are logged, and told to whoever asks; a hash of the key tells tenants apart anyway. */
const HOLDS_KEY = /^(?:(?:proxy-)?authorization|(?:x-)?(?:goog-)?api-key|cookie)$/i

const nameHeader = headerName.refine((name) => !HOLDS_KEY.test(name), {
  error: 'holds a key, which is never logged: expected another header',
})

const sessions = z.strictObject({
  headers: z
    .array(nameHeader)
    .default([
      'x-claude-code-session-id',
      'session-id',
      'session_id',
      'x-session-id',
      'x-session-affinity',
      'x-litellm-trace-id',
      'helicone-session-id',
    ])
    .describe('Request headers that carry a session id, in order. x-governor-session always comes first.'),
  thread_headers: z
    .array(nameHeader)
    .default(['x-claude-code-agent-id', 'thread-id'])
    .describe('Request headers that tell the conversations of one session apart (sub-agents).'),
  body_fields: z
    .array(z.string().min(1))
    .default(['metadata.session_id', 'metadata.user_id', 'conversation'])
    .describe(
      'Body fields that carry a session id, in order, after the headers. user_id counts only where it holds one.',
    ),
  max: z
    .int()
    .min(1)
    .max(10_000_000)
    .default(10_000)
    .describe('Sessions remembered; of the credential that has most, the least recently used goes first.'),
  ttl: duration.prefault('1h').describe('How long an unused session is remembered.'),
  max_bytes: size
    .refine((bytes) => bytes >= 1_024, { error: 'expected at least 1kb' })
    .prefault('256mb')
    .describe('Memory that all sessions together may take, roughly.'),
  scaffolding: z
    .strictObject({
      tags: z
        .array(z.string().min(1))
        .default([])
        .describe('<tag>…</tag> at the start of a text, by the tag’s name.'),
      prefixes: z
        .array(
          z.union(
            [
              z.string().min(1),
              z.strictObject({
                text: z.string().min(1).describe('How it begins.'),
                end: z.string().min(1).describe('How it ends, letter by letter.'),
              }),
            ],
            { error: 'expected a text, or text and end' },
          ),
        )
        .default([])
        .describe(
          'Texts that begin so, whatever follows. With {text, end} only those that end so as well: words after that are a person’s.',
        ),
      exact: z.array(z.string().min(1)).default([]).describe('Whole texts.'),
      summary_requests: z
        .array(z.string().min(1))
        .default([])
        .describe(
          'Whole texts by which an agent at its own limit asks for its last answer; {} stands for one word.',
        ),
    })
    .prefault({})
    .describe('User-role texts that your harness writes and no human said, added to those known.'),
})

const file = z.strictObject({
  server: server.prefault({}).describe('Listening.'),
  upstreams,
  timeouts: timeouts.prefault({}).describe('Time limits of upstreams and clients; 0s is none.'),
  budget: budget
    .prefault({})
    .describe('How many iterations a run has, and what the model is told. Reloaded on SIGHUP.'),
  stop: stop.prefault({}).describe('What happens at the limit. Reloaded on SIGHUP.'),
  loop_guard: loopGuard
    .prefault({})
    .describe('What becomes of runs that go round in circles. Reloaded on SIGHUP.'),
  overrides: z
    .array(
      z.strictObject({
        ...overrideMatch,
        budget: budgetOverride.optional().describe('Any key of the budget.'),
        loop_guard: z
          .strictObject(overrideShape(loopGuard.shape))
          .optional()
          .describe('Any key of the loop guard.'),
      }),
    )
    .default([])
    .describe(
      'Another budget or loop guard for some requests, by model, upstream or what a header says. For each of the two the first entry that matches and has it counts; what that does not say is as above. Reloaded on SIGHUP.',
    ),
  storm: storm
    .prefault({})
    .describe(
      'Many answers in a row of 429 or 5xx, or none at all, from one upstream and model in one conversation: one request at a time goes through, the others get the newest error at once with retry-after. Reloaded on SIGHUP.',
    ),
  models,
  overflow: overflow
    .prefault({})
    .describe('What becomes of requests that are too large for the model. Reloaded on SIGHUP.'),
  sessions: sessions.prefault({}).describe('How conversations are told apart and remembered.'),
  store: z.enum(['memory']).default('memory').describe('Where sessions are remembered.'),
  log: z
    .strictObject({
      level: z
        .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'])
        .default('info')
        .describe('JSON lines on standard output, one per request at info.'),
    })
    .prefault({})
    .describe('Logging.'),
})

/** What a name for this machine stands for. */
const LOCAL = /^(?:localhost|127\.0\.0\.1|::1)$/
/** All addresses of a machine, to whoever listens; to whoever asks, this one. */
const ANY = /^(?:0\.0\.0\.0|::)$/

/** Would a request to this URL surely come back to Governor itself, and go round for ever? */
function isOwnAddress(url: string, listening: string, port: number): boolean {
  if (!URL.canParse(url)) return false
  const { protocol, hostname, port: asked } = new URL(url)
  if (protocol !== 'http:' || Number(asked || 80) !== port) return false
  const [there, own] = [hostname.replace(/^\[|\]$/g, ''), listening.toLowerCase()]
  if (there === own) return true
  if (ANY.test(own)) return isLoopback(there) || ANY.test(there)
  const isNamed = [there, own].some((address) => address === 'localhost' || ANY.test(address))
  return isNamed && LOCAL.test(own) && (LOCAL.test(there) || ANY.test(there))
}

/** What only shows in several sections together, such as a name that no upstream has and nothing would match. */
export const configSchema = file.superRefine(
  (
    {
      server: { host, port },
      upstreams: known,
      budget: { overrides: flat, ...thresholds },
      overrides,
      models: named,
    },
    context,
  ) => {
    for (const [name, { url }] of Object.entries(known)) {
      if (!isOwnAddress(url, host, port)) continue
      const message = 'is where Governor itself listens: expected the address of the provider'
      context.addIssue({ code: 'custom', path: ['upstreams', name, 'url'], message })
    }
    const check = (list: readonly { readonly upstream?: string | undefined }[], path: readonly string[]) => {
      for (const [at, { upstream: name }] of list.entries()) {
        if (name === undefined || Object.hasOwn(known, name)) continue
        const message = `no such upstream: expected one of ${Object.keys(known).join(', ')}`
        context.addIssue({ code: 'custom', path: [...path, at, 'upstream'], message })
      }
    }
    check(flat, ['budget', 'overrides'])
    check(overrides, ['overrides'])
    for (const [at, { budget: one }] of overrides.entries()) {
      const message = one && outOfOrder(one, thresholds)
      const path = ['overrides', at, 'budget', 'caution_threshold']
      if (message) context.addIssue({ code: 'custom', path, message })
    }
    check(named, ['models'])
  },
)

/** A checked configuration: durations in milliseconds, sizes in bytes, every default filled in. */
export type Config = z.output<typeof configSchema>
