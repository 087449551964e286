/**
 * A provider that does next to nothing, so that it is never what is measured: it finds the end of a request and writes
 * an answer that was made before. How it answers is set by message: `{ kind: 'json' }`, `{ kind: 'stream', chunks,
 * interval }` (milliseconds), `{ kind: 'flood', first, piece, last, count }` (a text in so many events, all at once),
 * `{ kind: 'hold', count }` (answers once so many requests wait).
 */
import net from 'node:net'

const HEAD_END = Buffer.from('\r\n\r\n')
const LAST_CHUNK = Buffer.from('\r\n0\r\n\r\n')
const USAGE = { prompt_tokens: 5120, completion_tokens: 48, total_tokens: 5168 }

function answerWith(message, finishReason) {
  const body = JSON.stringify({
    id: 'chatcmpl-bench-000000000001',
    object: 'chat.completion',
    created: 1_760_000_000,
    model: 'gpt-bench',
    choices: [
      {
        index: 0,
        message: { role: 'assistant', refusal: null, ...message },
        logprobs: null,
        finish_reason: finishReason,
      },
    ],
    usage: USAGE,
  })
  const head = `HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\nx-request-id: req_bench\r\n\r\n`
  return Buffer.from(head + body)
}

const ANSWER = answerWith({ content: 'The refund keeps its currency now, and all 14 tests pass.' }, 'stop')

function callOf(id, name, path) {
  return { id, type: 'function', function: { name, arguments: JSON.stringify({ path }) } }
}

/** Two calls, of which the first is the one that conversations about loops repeat. */
const CALLS = answerWith(
  {
    content: null,
    tool_calls: [callOf('call_bench1', 'read_file', 'src/orders/refund.ts'), callOf('call_bench2', 'list', 'src')],
  },
  'tool_calls',
)

const STREAM_HEAD =
  'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n'

let mode = { kind: 'json' }
let waiting = []

function chunkOf(text) {
  return `${text.length.toString(16)}\r\n${text}\r\n`
}

function event(delta, finish, more = {}) {
  const choices = [{ index: 0, delta, finish_reason: finish }]
  const chunk = {
    id: 'chatcmpl-bench-000000000001',
    object: 'chat.completion.chunk',
    created: 1_760_000_000,
    model: 'gpt-bench',
    choices,
  }
  return `data: ${JSON.stringify({ ...chunk, ...more })}\n\n`
}

const [BEFORE_TIME, AFTER_TIME] = event({ content: ' <time>' }, null).split('<time>')
const STREAM_END = chunkOf(`${event({}, 'stop')}${event({}, null, { choices: [], usage: USAGE })}data: [DONE]\n\n`)

/** An event that says when it was sent, in nanoseconds of the clock that all processes of the machine share. */
function stampedChunk() {
  return chunkOf(`${BEFORE_TIME}@${String(process.hrtime.bigint()).padStart(20, '0')}${AFTER_TIME}`)
}

function stream(socket, { chunks, interval }) {
  let sent = 1
  socket.write(STREAM_HEAD + stampedChunk())
  const timer = setInterval(() => {
    if (socket.destroyed) return clearInterval(timer)
    if (sent++ < chunks) return socket.write(stampedChunk())
    clearInterval(timer)
    socket.write(`${STREAM_END}0\r\n\r\n`)
  }, interval)
}

function flood(socket, { first, piece, last, count }) {
  const eventOf = (content) => event({ content }, null)
  const events = eventOf(first) + eventOf(piece).repeat(count) + eventOf(last)
  socket.write(`${STREAM_HEAD}${chunkOf(events)}${STREAM_END}0\r\n\r\n`)
}

function hold(socket, { count }) {
  waiting.push(socket)
  if (waiting.length < count) return
  for (const held of waiting) held.write(ANSWER)
  waiting = []
}

function answer(socket, wantsCalls) {
  if (mode.kind === 'stream') stream(socket, mode)
  else if (mode.kind === 'flood') flood(socket, mode)
  else if (mode.kind === 'hold') hold(socket, mode)
  else socket.write(wantsCalls ? CALLS : ANSWER)
}

/** Finds the ends of requests, one after the other; a chunked one ends where its last chunk is the end of the bytes. */
function reader(socket) {
  let pending
  let missing
  let tail
  let wantsCalls = false
  const takeBody = (chunk) => {
    if (missing === undefined) {
      tail = Buffer.concat([tail, chunk]).subarray(-LAST_CHUNK.length)
      if (!tail.equals(LAST_CHUNK)) return
    } else {
      missing -= chunk.length
      if (missing > 0) return
    }
    tail = undefined
    answer(socket, wantsCalls)
  }
  const takeHead = (bytes) => {
    const end = bytes.indexOf(HEAD_END)
    if (end === -1) {
      pending = bytes
      return
    }
    pending = undefined
    const head = bytes.latin1Slice(0, end)
    const length = /\r\ncontent-length: *(\d+)/i.exec(head)?.[1]
    missing = length === undefined ? undefined : Number(length)
    wantsCalls = head.includes('\r\nx-bench-answer: calls')
    if (missing === undefined && !/\r\ntransfer-encoding: *chunked/i.test(head)) missing = 0
    tail = HEAD_END
    takeBody(bytes.subarray(end + HEAD_END.length))
  }
  return (chunk) => (tail ? takeBody(chunk) : takeHead(pending ? Buffer.concat([pending, chunk]) : chunk))
}

const server = net.createServer({ noDelay: true }, (socket) => {
  socket.on('data', reader(socket))
  // A proxy that is stopped resets its connections.
  socket.on('error', () => socket.destroy())
})

process.on('message', (wanted) => {
  mode = wanted
  waiting = []
  process.send({ result: null })
})
process.on('disconnect', () => process.exit())
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }))
