/**
 * The schema of the configuration: every key with its effect, its default and the reason for it. `npm run schema`
 * writes `config/schema.json`, `config/governor.yaml` and the table of `docs/configuration.md` from it. The table shows
 * the first sentence of each description, so this sentence must say what the key does. A reload applies the sections
 * and keys with `reloaded` in their metadata; all others need a restart.
 */

import { isDeepStrictEqual } from 'node:util'
import * as z from 'zod'
import { DEFAULT_TEXTS } from '../core/budget/budget-notices.ts'
import { LABELS } from '../core/conversation/label.ts'
import { sha256Of } from '../core/hash.ts'
import { namesOf } from '../core/names.ts'
import { isLoopback } from '../http/urls.ts'
import { SECRET_PREFIX, WEBHOOK_FORMATS, WEBHOOK_TOPICS } from '../telemetry/event.ts'
import { budget, text } from './budget.ts'
import { overflow } from './overflow.ts'
import { overrideShape, withOverride } from './override.ts'
import { redis } from './redis.ts'
import { keySections } from './scopes.ts'
import { address, choice, duration, filled, flag, headerName, key, optional, section, size, whole } from './units.ts'
import { upstreams } from './upstreams.ts'

const origin = z
  .string()
  .regex(
    /^(?:\*|null|[a-z][a-z0-9+.*-]*:\/\/[^\s/?#@]+)$/i,
    'expected an origin such as https://app.example or http://localhost:3000',
  )
  .toLowerCase()

const hostName = z
  .string()
  .regex(/^[a-z0-9._*?-]+$/i, 'expected a host name without scheme and port')
  .toLowerCase()

const keyEntry = z
  .strictObject({
    name: z
      .string()
      .regex(/^[\w.@-]{1,64}$/, 'expected a name of letters, digits and _ . @ -')
      .describe(
        'Whose key it is, as metrics, report, page and log show it. During a rotation two keys may have one name.',
      ),
    key: optional(filled, '$' + '{KEY_OF_ANNA}').describe('The key itself.'),
    key_sha256: optional(
      z.string().regex(/^[\da-f]{64}$/i, 'expected the 64 hex digits of a SHA-256'),
      undefined,
    ).describe('In its place its SHA-256 in hex, so that the file holds no key.'),
    models: key(z.array(filled), [], ['gpt-*-mini']).describe(
      'Globs of the models that it may use; empty: all. Any other model, and one that Governor cannot read, gets 403.',
    ),
    budget: optional(z.strictObject(keySections), { day: { max_cost_usd: 5 } }).describe(
      'Limits of its own, by hour, day, week and month, in place of those of the budget per key. They belong to the ' +
        'name, as the sums do: one entry has them for all keys of it.',
    ),
  })
  .refine(
    (entry) => (entry.key === undefined) !== (entry.key_sha256 === undefined),
    'expected a key or a key_sha256, and not both',
  )

const keyEntries = z.array(z.union([filled, keyEntry])).superRefine((entries, context) => {
  const budgets = new Map<string, object>()
  for (const [at, entry] of entries.entries()) {
    if (typeof entry === 'string' || !entry.budget) continue
    const known = budgets.get(entry.name)
    const message = `is not that of the other key of ${entry.name}: expected one budget for a name`
    if (known && !isDeepStrictEqual(known, entry.budget))
      context.addIssue({ code: 'custom', path: [at, 'budget'], message })
    budgets.set(entry.name, entry.budget)
  }
})

const server = section({
  host: key(filled, '127.0.0.1').describe(
    'Address to listen on. The default is loopback: everyone who can reach Governor can use the keys that it holds.',
  ),
  port: whole(0, 65535, 8787).describe('Port to listen on; 0 takes any free port.'),
  workers: whole(1, 64, 1).describe(
    'How many processes share the port, each on a core of its own; more than one needs `store: redis`. A connection ' +
      'stays at its process. One that ends is replaced. `governor run` is always one process.',
  ),
  access_keys: key(keyEntries, [], [{ name: 'anna', key: '$' + '{KEY_OF_ANNA}' }]).meta({
    description:
      'Keys that clients must send to upstreams whose key Governor holds. A client sends one as `Authorization: ' +
      'Bearer` or `x-api-key`. Governor holds a key in `api_key` or in `headers` of the upstream. If the list is ' +
      'empty, everyone who can reach Governor may use the keys that it holds. An entry is a key, or `name` with ' +
      '`key` or `key_sha256`, and `models` and `budget`.',
    reloaded: true,
  }),
  allowed_origins: key(z.array(origin), [], ['http://localhost:3000']).describe(
    'Web pages that may use a key which Governor holds, as globs of their origins. Web pages can send requests to ' +
      'loopback addresses too. If Governor holds the key and a request has no access key, Governor refuses a page ' +
      '(403) unless a glob here matches its origin. Pages that send their own key to an upstream without a key need ' +
      'no entry.',
  ),
  allowed_hosts: key(z.array(hostName), [], ['host.docker.internal']).describe(
    'Host names that may use a key which Governor holds, besides the names of loopback, as globs. While Governor ' +
      'listens on loopback, clients reach it as localhost, 127.0.0.1 or [::1]. In the same case as above Governor ' +
      'refuses any other host name (403), because a web page can make its own host name resolve to this machine, ' +
      'unless a glob here matches it. Add the name of a reverse proxy on this machine.',
  ),
  max_guarded_body: key(size, '32mb').describe(
    'Largest request body that Governor reads and guards. It relays larger bodies, and those with too many values, ' +
      'unguarded, and counts them.',
  ),
  max_buffered: optional(size, '256mb').describe(
    'Memory that all bodies together may take while Governor holds them: each until its response is over. By ' +
      'default a quarter of the memory that the process may use, and never more than half of it. Governor relays a ' +
      'request without room unread, and counts it.',
  ),
  drain_timeout: key(duration, '30s').describe(
    'How long running responses may go on after SIGTERM before Governor cuts them. Give the program that stops ' +
      'Governor (Docker, systemd, Kubernetes) more time than this.',
  ),
  websocket: choice(['guard', 'refuse', 'tunnel'], 'guard').describe(
    'What happens to WebSocket upgrades on guarded paths. guard: the requests on a WebSocket of the Responses API ' +
      'are guarded as those over HTTP, and other APIs are refused; refuse: 426, and clients use POST at once; ' +
      'tunnel: Governor passes them through, unguarded. It always tunnels them on other paths.',
  ),
}).describe('Where Governor listens, and who may use it.')

const timeouts = section({
  connect: key(duration, '10s').describe('Time to open a connection to an upstream.'),
  first_byte: key(duration, '30m').describe(
    'Time from the request to the response headers. It is long because reasoning models are silent for many minutes.',
  ),
  idle: key(duration, '30m').describe('Time between two pieces of a response.'),
  client_idle: key(duration, '60s').describe(
    'Time for the headers of a request, and between two pieces of its body. Governor never ends a slow upload that ' +
      'still sends.',
  ),
}).describe('Time limits for upstreams and clients; 0s is no limit.')

const stop = section({
  text: text(DEFAULT_TEXTS.stop).describe(
    'What Governor asks the model of a run that reached its limit on iterations or tool calls: its final answer, ' +
      'without tools.',
  ),
  limit_text: text(DEFAULT_TEXTS.stopAtLimit).describe(
    'The same at a limit on cost, tokens or time, and at each limit of a scope of time; {reached} names it.',
  ),
  loop_text: text(DEFAULT_TEXTS.stopInLoop).describe('The same for a run that the loop guard ends.'),
  fallback_text: text(DEFAULT_TEXTS.fallback).describe('The answer of a stopped run if its model gives none.'),
  unpriced_text: text(DEFAULT_TEXTS.unpriced).describe(
    'The answer where budget.unknown_price is refuse and the price of the model is not known.',
  ),
  closed_text: text(DEFAULT_TEXTS.closed).describe(
    'The answer to a new run, and to a request without tools, once a limit of an hour, a day, a week or a month is ' +
      'reached; the model is not asked.',
  ),
  rate_text: text(DEFAULT_TEXTS.tooFast).describe(
    'The answer to a new run, and to a request without tools, above a limit of budget.velocity; the model is not ' +
      'asked.',
  ),
  operator_text: text(DEFAULT_TEXTS.operatorStop).describe(
    'What Governor asks the model of a run that an operator has stopped.',
  ),
  operator_fallback_text: text(DEFAULT_TEXTS.operatorFallback).describe(
    'The answer of a run that an operator has stopped if its model gives none.',
  ),
  paused_text: text(DEFAULT_TEXTS.paused).describe(
    'What an agent gets in place of an answer while an operator has paused it. The model is not asked.',
  ),
  mode: choice(['answer', 'ask'], 'answer').describe(
    'What happens to the request that would end a run at a limit. answer: it gets the final answer at once; ask: ' +
      'Governor holds it until an operator extends or stops the run, by the API, `governor top` or the live page. ' +
      'Each limit is asked about once. The ends that the loop guard, an operator or the agent itself makes, and ' +
      'those at a limit of an hour, a day, a week or a month, are not asked about.',
  ),
  ask_timeout: key(duration, '20s').describe(
    'How long Governor holds such a request, or one of an agent that was paused with hold; then it gets the final ' +
      'answer. So long, too, waits a request that does not fit into an hour, a day, a week or a month only because ' +
      'of what others in flight may use. Clients wait without a byte, so this must be shorter than their timeouts.',
  ),
  footer: flag(false).describe(
    'Add a last line to the final answer that says why Governor ended the run: `— stopped by governor: 300 of 300 ' +
      'iterations`. It is for clients that show no metadata. An answer in a format that the client asked for, such ' +
      'as JSON, gets none.',
  ),
}).describe('What happens at the limit.')

const loopGuard = section({
  enabled: flag(true).describe('Look for loops.'),
  mode: choice(['observe', 'warn', 'enforce'], 'enforce', 'enabled: false switches it off').describe(
    'What happens in a loop. observe: Governor only counts loops; warn: it warns the model; enforce: it also ' +
      'blocks calls that the model repeats after the warnings, and ends a run that makes no other calls.',
  ),
  repetition_threshold: whole(2, 100, 3).describe(
    'Equal calls with equal results that make a loop. They count in a row, or among the last 10 calls if there ' +
      'is at most one new call between two of them, and none that changes something. Two calls in turn (ABAB) are ' +
      'a loop after two rounds. After a warning one repetition less is enough. If something new came in between, ' +
      'Governor tells the model once and blocks nothing.',
  ),
  standstill: whole(2, 100, 5).describe(
    'Responses in a row without anything new that make a loop. Nothing is new in a response if the last calls ' +
      'had the same calls with the same results.',
  ),
  max_warnings_before_block: whole(0, 1_000, 2).describe(
    'Warnings that the model may ignore, with nothing new in between, before Governor blocks its calls. Twice ' +
      'as many if all results have 16 characters or less, because such results can show no progress.',
  ),
  max_blocks: whole(1, 1_000, 5).describe(
    'Responses of a run whose calls Governor blocks before the run ends. A call that the agent made although it was ' +
      'to be blocked counts as well, for responses whose calls Governor cannot read.',
  ),
  exempt_tools: key(z.array(filled), ['process']).describe(
    'Globs of tools that the model may call as often as it likes. Their calls neither count nor reset the count.',
  ),
  poll_multiplier: whole(1, 100, 2).describe(
    'How many times more often calls that wait for something may repeat. A call waits if its name or the first ' +
      '300 characters of its arguments say so (status, poll, wait, watch, tail, sleep), or if a short result says ' +
      'that work is still running. Governor advises the model to wait at growing intervals (6, 12, 24, …), and ' +
      'blocks only after 40 equal answers within 10 minutes.',
  ),
  same_call_any_result: whole(2, 1_000, 6).describe(
    'Equal calls in a row that get a warning even if their results differ. Governor advises the model to wait, ' +
      'and never blocks these calls.',
  ),
  volatile: choice(['default', 'none'], 'default').describe(
    'What Governor masks before it compares results. default: dates, clocks, durations, UUIDs, addresses, hex ' +
      'ids, numbers of 7 digits and more (unless they count something), ids by their names (pid, chunk id) and ' +
      'step counters (step 11/20); the order of lines does not matter either. If results are equal only after that, ' +
      'Governor tells the model once and blocks no call. What a harness adds to every result (reminders, how the ' +
      'call was run) is left out. none: Governor compares results letter by letter.',
  ),
}).describe(
  'What happens to runs in a loop. `governor replay FILE` shows what these settings would have done to recorded ' +
    'conversations.',
)

const agents = section({
  spawn_tools: key(z.array(filled), [
    ...['Task', 'Agent', 'Workflow', 'task', 'delegate_task', '*spawn_agent'],
  ]).describe(
    'Globs of the tools with which agents start others, for the limits of budget.session on agents. A call whose ' +
      'arguments have a list tasks, agents or subagents starts as many. The defaults are those of Claude Code, ' +
      'opencode, hermes and codex.',
  ),
}).describe('How agents start other agents.')

const storm = section({
  enabled: flag(true).describe(
    'Hold requests back. false: each request goes to the provider, however many errors came before.',
  ),
  errors: whole(2, 10_000, 20).describe(
    'Errors in a row that make a storm: over at least 60 seconds, or of one body within 2 seconds.',
  ),
}).describe(
  'What happens after many errors in a row (429, 5xx, or no answer) from one upstream and model in one ' +
    'conversation. One request at a time goes through; the others get the newest error at once, with retry-after.',
)

const perMillion = z.number().min(0)

const price = z.strictObject({
  input: perMillion.describe('Price of the prompt.'),
  output: perMillion.describe('Price of the answer, reasoning included.'),
  cached_input: optional(perMillion).describe('Price of what the provider read from a cache; without it, as input.'),
  cache_write: optional(perMillion).describe('Price of what the provider wrote to a cache; without it, as input.'),
})

const model = z
  .strictObject({
    model: filled.describe('Glob of model names, as clients send them.'),
    upstream: optional(filled).describe('Name of one upstream; without it the entry applies to all of them.'),
    context_window: optional(z.int().min(1)).describe('Tokens of prompt and answer together.'),
    price: optional(price).describe(
      'US dollars per million tokens: input, output, cached_input, cache_write. The last two default to input; 0 ' +
        'if a model costs nothing.',
    ),
  })
  .refine(
    (value) => value.context_window !== undefined || value.price !== undefined,
    'has no effect: expected a price, a context_window, or both',
  )

const MODEL_EXAMPLE = {
  model: 'qwen3-*',
  upstream: 'local',
  context_window: 131072,
  price: { input: 0.2, output: 0.6, cached_input: 0.02 },
}

const models = key(z.array(model), [], [MODEL_EXAMPLE]).describe(
  "Prices and context windows that you know better than Governor's catalogue. For each of the two the first entry " +
    'counts that matches and has one.',
)

const ops = section({
  admin_token: optional(
    z
      .string()
      .regex(
        /^[\x21-\x7e]{6,}$/,
        'expected a token of at least 6 letters, digits and signs, without white space and line ends',
      ),
    '$' + '{GOVERNOR_ADMIN_TOKEN}',
  ).describe(
    'Token with which anyone may read and steer sessions from anywhere, as `Authorization: Bearer`. The environment ' +
      'variable GOVERNOR_ADMIN_TOKEN wins over it. Without a token only requests from this machine may do that.',
  ),
  trust_loopback: flag(true).describe(
    'Let requests from loopback read and steer sessions without the token. Set false behind a reverse proxy on ' +
      'this machine: every request then comes from loopback.',
  ),
  names: choice(['all', 'token'], 'all').describe(
    'Who sees the names that clients give their sessions, which may be secrets. all: everyone who may stop a ' +
      'session; token: only requests with the token.',
  ),
  url: address('https://governor.example.com').describe(
    'Address at which people reach Governor, for links to the live page in webhook messages and in the log. ' +
      'Without it they name the address that Governor listens on.',
  ),
  metrics_public: flag(false).describe(
    'Serve /metrics to everyone even if there is a token. Without a token /metrics is always open.',
  ),
}).describe('Who may read and steer sessions: /governor/, its API and its commands; and who may read /metrics.')

/** Headers that hold keys, because session ids appear in logs and replies. */
const HOLDS_KEY = /^(?:(?:proxy-)?authorization|(?:x-)?(?:goog-)?api-key|cookie)$/i

const nameHeader = headerName
  .refine((name) => !HOLDS_KEY.test(name), 'holds a key, which is never logged: expected another header')
  .toLowerCase()

const sessions = section({
  headers: key(z.array(nameHeader), [
    'x-claude-code-session-id',
    'x-opencode-session',
    'session-id',
    'session_id',
    'x-session-id',
    'x-session-affinity',
    'x-grok-session-id',
    'x-litellm-session-id',
    'x-litellm-trace-id',
    'helicone-session-id',
  ]).describe('Request headers that carry a session id, in order. x-governor-session always comes first.'),
  thread_headers: key(z.array(nameHeader), ['x-claude-code-agent-id', 'thread-id']).describe(
    'Request headers that distinguish the conversations of one session (sub-agents).',
  ),
  body_fields: key(z.array(filled), ['metadata.session_id', 'metadata.user_id', 'conversation']).describe(
    'Body fields that carry a session id, in order, after the headers. user_id counts only if it contains one, and ' +
      'so does prompt_cache_key, which is read last (session_ and a UUID, as in Kimi Code), unless it is listed. ' +
      'Without any id, Governor identifies a session by its system text, its first human message and its first ' +
      'answer.',
  ),
  max: whole(1, 10_000_000, 10_000).describe(
    'Sessions that Governor remembers. If there are more, it forgets the least recently used one of the credential ' +
      'that has most.',
  ),
  ttl: key(duration, '1h').describe('How long Governor remembers an unused session.'),
  max_bytes: key(
    size.refine((bytes) => bytes >= 1_024, 'expected at least 1kb'),
    '256mb',
  ).describe(
    'Memory that all sessions together may take, roughly; at most an eighth of the memory that the process may use.',
  ),
  transcript: flag(false).describe(
    'Keep what users and assistants say in each session. GET /governor/sessions/ID/transcript, the live page and ' +
      '`governor session ID --transcript` show it. A session keeps its newest 200 texts, 65,536 characters of each ' +
      'and 262,144 of all; they are kept where the session is and as long, and take at most as much memory again as ' +
      '`max_bytes`. If false, no prompt is kept, and no answer but those with which Governor ended a run.',
  ),
  labels: choice(LABELS, 'none').describe(
    'What list, page, `top`, session and the lines on a terminal say of what an agent does, where its client gives ' +
      'it no name. folder: the ' +
      "last segment of its project's folder, which agents write into their prompts; task: the first words of what " +
      'a human said first, at most 48 characters and never all of them, else the folder. They are kept with the ' +
      'session, shown to those who see names (ops.names), and in no log, metric, journal, webhook or trace.',
  ),
  scaffolding: section({
    tags: key(z.array(filled), []).describe('Names of tags: a text that starts with <tag>…</tag>.'),
    prefixes: key(
      z.array(
        z.union(
          [
            filled,
            z.strictObject({
              text: filled.describe('How it begins.'),
              end: filled.describe('How it ends, letter by letter.'),
            }),
          ],
          'expected a text, or text and end',
        ),
      ),
      [],
      [{ text: '[note', end: ']' }],
    ).describe(
      'Beginnings of texts, whatever follows. {text, end} matches only up to that end, because words after it ' +
        "are a person's.",
    ),
    exact: key(z.array(filled), []).describe('Whole texts.'),
    summary_requests: key(z.array(filled), []).describe(
      'Whole texts that an agent at its own limit sends to ask for its last answer; {} stands for one word.',
    ),
  }).describe(
    'Texts of role user that your harness writes and no human said, besides those that Governor knows. Without ' +
      'them each looks like a new human message and starts a fresh budget.',
  ),
}).describe('How Governor distinguishes and remembers conversations.')

const TOPICS = [...namesOf(WEBHOOK_TOPICS)]

const webhook = z.strictObject({
  url: address('https://hooks.example/governor').describe(
    'Address to which Governor posts messages about events that need a person, as JSON. Without an address it ' +
      'posts nothing. It follows no redirect.',
  ),
  secret: optional(
    z
      .string()
      .min(16, 'expected at least 16 characters')
      .refine((secret) => {
        if (!secret.startsWith(SECRET_PREFIX)) return true
        const unpadded = secret.slice(SECRET_PREFIX.length).replace(/={1,2}$/, '')
        const bytes = Buffer.from(unpadded, 'base64')
        return bytes.length >= 16 && bytes.toString('base64').replace(/={1,2}$/, '') === unpadded
      }, 'expected base64 of at least 16 bytes after whsec_'),
    '$' + '{GOVERNOR_WEBHOOK_SECRET}',
  ).describe(
    'Key of the signature in `webhook-signature` (HMAC-SHA256, as standardwebhooks.com describes it): text, or ' +
      '`whsec_` and base64.',
  ),
  format: key(z.enum(namesOf(WEBHOOK_FORMATS)), 'standard').describe(
    'standard: all fields as JSON, signed; slack, discord: one line and a link, as their incoming webhooks take it.',
  ),
  on: key(z.array(z.enum(TOPICS)).min(1), TOPICS).describe(
    'Topics of the messages; there is one message per session and threshold. They are: ' +
      `${Object.values(WEBHOOK_TOPICS).join(', ')}.`,
  ),
})

const events = z.strictObject({
  webhook: webhook
    .refine(
      ({ url, secret, format }) => url === undefined || secret !== undefined || format !== 'standard',
      'has a url and no secret: receivers could not tell the messages from forged ones; Slack and Discord need none: ' +
        'format: slack, or discord',
    )
    .prefault({})
    .describe('A receiver of messages.'),
})

/** All conditions of an override must match. */
const override = z
  .strictObject({
    model: optional(filled).describe('Glob of model names.'),
    upstream: optional(filled).describe('Name of an upstream.'),
    header: key(z.record(headerName.toLowerCase(), filled), {}).describe(
      'Request headers that must be present, with globs of their values.',
    ),
    budget: optional(z.strictObject(overrideShape(budget.shape))).describe('Any key of the budget.'),
    loop_guard: optional(z.strictObject(overrideShape(loopGuard.unwrap().shape))).describe(
      'Any key of the loop guard.',
    ),
  })
  .refine(
    (value) => value.budget !== undefined || value.loop_guard !== undefined,
    'has no effect: expected a budget, a loop_guard, or both',
  )

const RELOADED = { reloaded: true }

const file = z.strictObject({
  server,
  upstreams,
  timeouts,
  budget: key(budget, {}).meta({
    description: 'How much a run may use, and what Governor tells the model about it.',
    reloaded: true,
  }),
  mode: choice(['enforce', 'observe'], 'enforce').meta({
    reloaded: true,
    description:
      'Whether Governor acts on what it finds. observe: it counts and evaluates every request, but adds, blocks and ' +
      'stops nothing; `x-governor-observed`, the log and metrics show the verdict that a request would have got.',
  }),
  agents: agents.meta(RELOADED),
  stop: stop.meta(RELOADED),
  loop_guard: loopGuard.meta(RELOADED),
  overrides: key(z.array(override), []).meta({
    reloaded: true,
    description:
      'Another budget or loop guard for some requests, by model, upstream or request headers. For each of the two ' +
      'the first entry counts that matches and has it; what it leaves out is as above.',
    examples: [
      [
        { model: '*-mini', budget: { max_iterations: 50 } },
        { header: { 'x-claude-code-agent-id': '*' }, budget: { run: { max_tool_calls: 8 } } },
        { header: { 'user-agent': 'codex_exec/*' }, loop_guard: { mode: 'enforce' } },
      ],
    ],
  }),
  storm: storm.meta(RELOADED),
  models,
  overflow: key(overflow, {}).meta({
    description:
      'What happens to requests that are too large for the model. An error that says so keeps its status and its ' +
      'body, and gains error.governor and the header x-governor-overflow; every other error stays as it is.',
    reloaded: true,
  }),
  ops,
  sessions,
  store: choice(['memory', 'redis'], 'memory').describe(
    'Where Governor remembers sessions. memory: in the process, for one replica; redis: in Redis or Valkey, for ' +
      'any number of replicas that count as one. If the environment variable REDIS_URL is set, it is redis.',
  ),
  redis: key(redis, {}).describe(
    'The server behind `store: redis`: Redis 6.2 or newer, or Valkey. While it fails, each replica continues ' +
      'with its own memory and the transcripts.',
  ),
  usage: section({
    journal: key(z.string(), '').describe(
      'File to which Governor appends what agents used; empty: none. It gets a line of JSON for each finished run ' +
        'and each hour of a running one, without any text of theirs, and `governor report` adds the lines up. ~/ is ' +
        'the home folder. From 8 MB on a new file is begun, and four older ones are kept.',
    ),
  }).describe('What is kept of the use of models.'),
  events: key(events, {}).describe('Who gets messages about events that need a person.'),
  log: section({
    level: choice(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'], 'info').describe(
      'Lowest level that Governor logs. It writes JSON lines on standard output, one per request at info. Keys and ' +
        'prompts are never in them.',
    ),
  }).describe('What Governor logs.'),
})

const LOCAL = /^(?:localhost|127\.0\.0\.1|::1)$/
/** All addresses of this machine for a server; this machine for a client. */
const ANY = /^(?:0\.0\.0\.0|::)$/

/** True if a request to this URL certainly comes back to Governor, again and again. */
function isOwnAddress(url: string, listening: string, port: number): boolean {
  if (!URL.canParse(url)) return false
  const { protocol, hostname, port: urlPort } = new URL(url)
  if (protocol !== 'http:' || Number(urlPort || 80) !== port) return false
  const [target, host] = [hostname.replace(/^\[|\]$/g, ''), listening.toLowerCase()]
  if (target === host) return true
  if (ANY.test(host)) return isLoopback(target) || ANY.test(target)
  const isNamed = [target, host].some((address) => address === 'localhost' || ANY.test(address))
  return isNamed && LOCAL.test(host) && (LOCAL.test(target) || ANY.test(target))
}

/** The schema of a configuration file, with the checks that need several sections. */
export const configSchema = file.superRefine(({ server, store, upstreams, budget, overrides, models }, context) => {
  const complain = (path: PropertyKey[], message: string) => context.addIssue({ code: 'custom', path, message })
  if (server.workers > 1 && store !== 'redis')
    complain(['server', 'workers'], 'several processes share their sessions in Redis: expected 1, or `store: redis`')
  const hashes = new Set<string>()
  for (const [at, entry] of server.access_keys.entries()) {
    const { key, key_sha256 = '' } = typeof entry === 'string' ? { key: entry } : entry
    const hashed = key === undefined ? key_sha256.toLowerCase() : sha256Of(key)
    if (hashes.has(hashed))
      complain(['server', 'access_keys', at], 'is the key of an entry before: expected another key')
    hashes.add(hashed)
  }
  for (const [name, { url }] of Object.entries(upstreams))
    if (isOwnAddress(url, server.host, server.port))
      complain(
        ['upstreams', name, 'url'],
        'is the address on which Governor listens: expected the address of the provider',
      )
  for (const [section, entries] of Object.entries({ overrides, models }))
    for (const [at, { upstream }] of entries.entries())
      if (upstream !== undefined && !Object.hasOwn(upstreams, upstream))
        complain([section, at, 'upstream'], `no such upstream: expected one of ${Object.keys(upstreams).join(', ')}`)
  const budgets: { path: PropertyKey[]; of: typeof budget }[] = [{ path: ['budget'], of: budget }]
  for (const [at, { budget: changed }] of overrides.entries())
    if (changed) budgets.push({ path: ['overrides', at, 'budget'], of: withOverride(budget, changed) })
  for (const { path, of } of budgets) {
    const { caution_threshold: caution, warning_threshold: warning } = of
    if (caution <= warning) continue
    const message = `${caution} is above warning_threshold, ${warning}: expected at most ${warning}`
    complain([...path, 'caution_threshold'], message)
  }
})

/** A checked configuration: durations in milliseconds, sizes in bytes, every default filled in. */
export type Config = z.output<typeof configSchema>
