/** Answers built-in conversations, so that the code for requests is loaded and compiled when the first real one comes. */
import { Readable, Writable } from 'node:stream'
import { setTimeout as pause, setImmediate } from 'node:timers/promises'
import type { Config } from './config/schema.ts'
import { createServices } from './create-services.ts'
import { type Client, writerTo } from './http/client.ts'
import { exchange } from './proxy/exchange.ts'
import type { Services } from './proxy/services.ts'
import { createMemoryStore } from './store/memory.ts'

/** A conversation has so many steps, and each API has so many conversations, whole and streamed in turn. */
const STEPS = 12
const CONVERSATIONS = 2
/** Milliseconds after which it looks again whether real requests are under way. */
const BUSY_MS = 50

const JSON_TYPE = 'application/json'

/** A conversation of an API in which each answer calls a tool, as JSON; `$` stands for the id of a call. */
interface Sample {
  readonly path: string
  readonly streamPath?: string
  readonly headers?: readonly string[]
  /** What a request holds before and after its steps, and one step: a call and its result. */
  readonly request: readonly [before: string, after: string]
  readonly step: string
  readonly answer: string
  readonly events: readonly string[]
}

const RESULT = `$: ${'a line of the notes, which says something new. '.repeat(8)}`
const TASK = 'Read the notes and say what they are about.'
const TOOL = '"name":"read_file","description":"Reads a file"'
const SCHEMA = '{"type":"object","properties":{"path":{"type":"string"}}}'
const CALLED = '"name":"read_file"'
const ARGUMENTS = String.raw`"{\"path\":\"notes.md\"}"`

const TOOL_CALLS = `[{"index":0,"id":"$","type":"function","function":{${CALLED},"arguments":${ARGUMENTS}}}]`
const TOOL_USE = `{"type":"tool_use","id":"$",${CALLED},"input":{"path":"notes.md"}}`
const MESSAGE = '"id":"m-$","type":"message","role":"assistant","usage":{"input_tokens":100,"output_tokens":10}'
const ITEM = `{"type":"function_call","id":"i-$","call_id":"$",${CALLED},"arguments":${ARGUMENTS},"status":"completed"}`
const RESPONSE = `{"id":"r-$","object":"response","status":"completed","output":[${ITEM}],"usage":{"input_tokens":100,"output_tokens":10}}`
const CONTENT = `{"role":"model","parts":[{"functionCall":{"id":"$",${CALLED},"args":{"path":"notes.md"}}}]}`
const CANDIDATE = `{"responseId":"r-$","candidates":[{"content":${CONTENT},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":100}}`

const SAMPLES: readonly Sample[] = [
  {
    path: '/v1/chat/completions',
    request: [
      `"tools":[{"type":"function","function":{${TOOL},"parameters":${SCHEMA}}}],"messages":[{"role":"user","content":"${TASK}"}`,
      ']',
    ],
    step: `,{"role":"assistant","content":null,"tool_calls":${TOOL_CALLS}},{"role":"tool","tool_call_id":"$","content":"${RESULT}"}`,
    answer: `{"id":"c-$","choices":[{"index":0,"message":{"role":"assistant","tool_calls":${TOOL_CALLS}},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":100}}`,
    events: [
      `{"id":"c-$","choices":[{"index":0,"delta":{"role":"assistant","tool_calls":${TOOL_CALLS}}}]}`,
      '{"id":"c-$","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}',
    ],
  },
  {
    path: '/v1/messages',
    headers: ['anthropic-version', '2023-06-01'],
    request: [
      `"max_tokens":99,"tools":[{${TOOL},"input_schema":${SCHEMA}}],"messages":[{"role":"user","content":"${TASK}"}`,
      ']',
    ],
    step: `,{"role":"assistant","content":[${TOOL_USE}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"$","content":"${RESULT}"}]}`,
    answer: `{${MESSAGE},"content":[${TOOL_USE}],"stop_reason":"tool_use"}`,
    events: [
      `{"type":"message_start","message":{${MESSAGE},"content":[]}}`,
      `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"$",${CALLED},"input":{}}}`,
      `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":${ARGUMENTS}}}`,
      '{"type":"content_block_stop","index":0}',
      '{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":10}}',
      '{"type":"message_stop"}',
    ],
  },
  {
    path: '/v1/responses',
    request: [
      `"tools":[{"type":"function",${TOOL},"parameters":${SCHEMA}}],"input":[{"role":"user","content":"${TASK}"}`,
      ']',
    ],
    step: `,${ITEM},{"type":"function_call_output","call_id":"$","output":"${RESULT}"}`,
    answer: RESPONSE,
    events: [
      `{"type":"response.created","response":{"id":"r-$","status":"in_progress","output":[]}}`,
      `{"type":"response.output_item.added","output_index":0,"item":${ITEM}}`,
      `{"type":"response.output_item.done","output_index":0,"item":${ITEM}}`,
      `{"type":"response.completed","response":${RESPONSE}}`,
    ],
  },
  {
    path: '/v1beta/models/warm-up:generateContent',
    streamPath: '/v1beta/models/warm-up:streamGenerateContent?alt=sse',
    request: [
      `"tools":[{"functionDeclarations":[{${TOOL},"parameters":${SCHEMA}}]}],"contents":[{"role":"user","parts":[{"text":"${TASK}"}]}`,
      ']',
    ],
    step: `,${CONTENT},{"role":"user","parts":[{"functionResponse":{"id":"$",${CALLED},"response":{"output":"${RESULT}"}}}]}`,
    answer: CANDIDATE,
    events: [CANDIDATE],
  },
]

const withId = (text: string, id: string) => text.replaceAll('$', id)

/** Returns an event of a stream; those of some APIs have a name. */
function eventText(event: string): string {
  const [, name] = /^\{"type":"([\w.]+)"/.exec(event) ?? []
  return `${name === undefined ? '' : `event: ${name}\n`}data: ${event}\n\n`
}

/** The answer to the next request. */
interface Upstream {
  type: string
  chunks: readonly string[]
}

/** Returns connections that answer each request with what `upstream` has, and open none. */
function transportOf(upstream: Upstream): Services['transport'] {
  return {
    dispatch(_, handler) {
      const headers = ['content-type', upstream.type].map((field) => Buffer.from(field))
      handler.onConnect?.(() => {})
      handler.onHeaders?.(200, headers, () => {}, 'OK')
      for (const chunk of upstream.chunks) handler.onData?.(Buffer.from(chunk))
      handler.onComplete?.([])
      return true
    },
    destroy: async () => {},
  }
}

/** Returns a client that reads nothing, and a promise of its status at the end of its response. */
function clientOf(head: Client['head'], body: Buffer) {
  let status = 0
  const to = new Writable({ write: (_chunk, _encoding, done) => done() })
  const { close, ...writer } = writerTo(to)
  to.once('close', close).once('finish', close)
  const client: Client = {
    ...writer,
    head,
    body: Readable.from([body]),
    status: () => status,
    inform() {},
    begin({ status: stated }) {
      status = stated
    },
    end: (_trailers, last) => void to.end(last),
    fail: () => false,
  }
  return { client, ended: new Promise<number>((resolve) => client.onClose(() => resolve(status))) }
}

/** Sends the requests of one conversation; returns how many were answered. */
async function converse(services: Services, upstream: Upstream, sample: Sample, number: number, isBusy: () => boolean) {
  const isStream = number % 2 === 1
  const { path, streamPath = path, headers = [], request, step, answer, events } = sample
  const head = {
    method: 'POST',
    target: isStream ? streamPath : path,
    headers: ['content-type', JSON_TYPE, ...headers],
  }
  let steps = ''
  let answered = 0
  for (let at = 0; at < STEPS; at++) {
    while (isBusy()) await pause(BUSY_MS, undefined, { ref: false })
    // Real requests come first.
    await setImmediate()
    if (services.draining.aborted) break
    const id = `call_${number}_${at}`
    const body = `{"model":"warm-up","stream":${isStream},${request[0]}${steps}${request[1]}}`
    upstream.type = isStream ? 'text/event-stream' : JSON_TYPE
    upstream.chunks = isStream ? events.map((event) => withId(eventText(event), id)) : [withId(answer, id)]
    const { client, ended } = clientOf(head, Buffer.from(body))
    await exchange(services, client)
    if ((await ended) === 200) answered++
    steps += withId(step, id)
  }
  return answered
}

/**
 * Answers conversations of every API, between which real requests have their turn; returns how many requests were
 * answered. It has a store and connections of its own, and nothing counts, logs or sends its requests.
 */
export async function warmUp(
  config: Config,
  { now, draining }: Pick<Services, 'now' | 'draining'>,
  isBusy: () => boolean,
  emit: Services['emit'] = () => undefined,
): Promise<number> {
  const upstream: Upstream = { type: '', chunks: [] }
  const store = createMemoryStore({ max: 100, ttl: 60_000, maxBytes: 10_000_000 }, now)
  const options = { store, transport: transportOf(upstream), emit, draining, now }
  const services = { ...createServices(config, options), tracing: undefined }
  let answered = 0
  for (let number = 0; number < CONVERSATIONS; number++)
    for (const sample of SAMPLES) answered += await converse(services, upstream, sample, number, isBusy)
  services.quietRuns.close()
  services.ledger.close()
  return answered
}
