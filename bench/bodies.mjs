/**
 * Conversations as coding agents send them to Chat Completions: a system text, tools, a task, then calls and their
 * results. The same arguments give the same bytes.
 */

/** Stands where a session's number goes: in the task, in every call's id. */
export const STAMP = '@@@@@@@@@@'

export const SIZES = { '1KB': 1024, '32KB': 32_768, '256KB': 262_144, '1MB': 1_048_576, '4MB': 4_194_304 }

/** Conversations that are sent from their first step to their last: how many there are, and their steps and bytes. */
export const WHOLE = {
  steps: Array.from({ length: 24 }, (_, index) => {
    const random = numbersFrom(index + 1)
    const turns = 12 + Math.floor(60 * random() ** 1.5)
    return { turns, bytes: 3072 + turns * (500 + 2200 * random() ** 2) }
  }),
  growing: [{ turns: 100, bytes: SIZES['1MB'] }],
}

const SENTENCES = [
  'You are a coding agent that works in a checkout of the user’s repository.',
  'Read before you write: look at the file, at its tests and at its callers.',
  'Keep changes small, and run the tests that cover them after every change.',
  'Never print secrets, tokens or the content of ".env" files.',
  'Prefer `rg` to `grep -r`, and quote paths that contain "spaces" or \\backslashes\\.',
  'When a command fails twice in the same way, say what you think is wrong before a third attempt.',
  'Answer in the language of the user – Deutsch, français, 日本語 – and keep code in English.',
]

const CODE = [
  'export async function resolveUser(id: string, { retries = 3 } = {}): Promise<User | undefined> {',
  "\tconst response = await fetch(base + '/users/' + encodeURIComponent(id) + '?fields=name,email', { headers })",
  '\tif (!response.ok) throw new HttpError(response.status, await response.text())',
  '  const pattern = /^(?<scope>@[a-z0-9-]+\\/)?(?<name>[a-z0-9._-]+)$/u',
  '    "scripts": { "test": "vitest run", "lint": "biome check ." },',
  '  return rows.filter((row) => row.kind !== "deleted").map(({ id, ...rest }) => ({ ...rest, key: "u:" + id }))',
  '}',
  '',
  '// Überprüft die Größe, bevor geschrieben wird – sonst läuft der Puffer über.',
  '        self.assertEqual(parse("a,b\\n1,\\"x\\""), [["a", "b"], ["1", "x"]])',
  '    for index, (name, value) in enumerate(sorted(headers.items())):',
  '  <button className="primary" onClick={() => save({ draft: false })}>Save & close</button>',
]

const LOG = [
  '2025-06-03T09:14:07.512Z INFO  http request completed method=GET path="/api/v1/orders" status=200 ms=14',
  '2025-06-03T09:14:07.730Z WARN  pool connection returned late {"pool":"main","waited":218,"size":20}',
  '\u001b[32m ✓ \u001b[0mtest/orders/total.test.ts \u001b[2m(14 tests)\u001b[22m 212ms',
  '\u001b[31m ✗ \u001b[0mtest/orders/refund.test.ts > refunds > keeps "partial" refunds apart',
  'AssertionError: expected { amount: 1200, currency: "EUR" } to deeply equal { amount: 1200, currency: "€" }',
  '    at Object.<anonymous> (/srv/app/test/orders/refund.test.ts:48:21)',
  'npm warn deprecated inflight@1.0.6: This module is not supported, and leaks memory.',
  'drwxr-xr-x  4 node node  4096 Jun  3 09:02 src',
  'src/orders/refund.ts:112:18 - error TS2345: Argument of type "string" is not assignable to "Currency".',
]

const TOOLS = [
  ['read_file', 'Reads a file.', ['path']],
  [
    'run',
    'Runs a shell command in the repository and returns what it printed and its exit code.',
    ['command', 'timeout'],
  ],
  ['write_file', 'Writes a file as a whole; folders are made as needed.', ['path', 'content']],
  ['edit_file', 'Replaces one exact piece of text in a file. The piece must stand in it once.', ['path', 'old', 'new']],
  [
    'search',
    'Finds a regular expression in the files of a folder, with lines around every place.',
    ['pattern', 'path', 'context'],
  ],
  ['list', 'Lists a folder, deeper folders included, without what .gitignore names.', ['path', 'depth']],
  ['diff', 'Shows what was changed since a commit.', ['commit', 'path']],
  ['test', 'Runs the tests whose names match and returns the failures.', ['pattern', 'watch']],
  ['fetch', 'Fetches a web page as Markdown.', ['url', 'length']],
  ['symbols', 'Lists the functions, classes and types that a file declares.', ['path', 'kind']],
  ['references', 'Finds every place that refers to a symbol.', ['symbol', 'path', 'line']],
  ['rename', 'Renames a symbol in all files.', ['symbol', 'path', 'name']],
  ['note', 'Keeps a note for later, as the conversation may be shortened.', ['title', 'text']],
  ['ask', 'Asks the user one question and waits for the answer.', ['question', 'options']],
]

/** As many as a session has requests at least, so that not each of them is the first of one. */
const MIN_TURNS = 5
const AVERAGE_RESULT = 4096
const SYSTEM_BYTES = 6144
const TOOL_BYTES = 10_240

/** A generator of numbers from 0 to 1 (mulberry32). */
function numbersFrom(seed) {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

function linesFrom(pool, random, bytes, separator) {
  let text = ''
  do text += pool[Math.floor(random() * pool.length)] + separator
  while (text.length < bytes)
  return text
}

function toolFrom([name, description, fields], isTerse) {
  const properties = fields.map((field) => [
    field,
    isTerse
      ? { type: 'string' }
      : { type: 'string', description: `The ${field} to use. ${SENTENCES[1]} ${SENTENCES[2]}` },
  ])
  const parameters = { type: 'object', properties: Object.fromEntries(properties), required: [fields[0]] }
  return { type: 'function', function: { name, description, parameters } }
}

function toolsOf(bytes) {
  const tools = [toolFrom(TOOLS[0], true)]
  for (const tool of TOOLS.slice(1)) {
    if (JSON.stringify(tools).length > bytes) break
    tools.push(toolFrom(tool, false))
  }
  return tools
}

/** One turn of an agent: a call of the model's and what the tool gave. */
function turn(random, index, bytes) {
  const [name, , fields] = TOOLS[Math.floor(random() * TOOLS.length)]
  const id = `call_${STAMP}${String(index).padStart(4, '0')}`
  const argument = `src/orders/part-${index}.ts`
  const call = {
    id,
    type: 'function',
    function: { name, arguments: JSON.stringify({ [fields[0]]: argument }) },
  }
  const content = linesFrom(random() < 0.6 ? CODE : LOG, random, bytes - 320, '\n')
  const said = random() < 0.3 ? SENTENCES[Math.floor(random() * SENTENCES.length)] : null
  const messages = [
    { role: 'assistant', content: bytes > 512 ? said : null, tool_calls: [call] },
    { role: 'tool', tool_call_id: id, content },
  ]
  return messages.map((message) => `,${JSON.stringify(message)}`).join('')
}

/** A turn that is like the others of its kind but for the number of its call. */
function repeatedTurn(index) {
  const id = `call_${STAMP}r${String(index).padStart(3, '0')}`
  const call = {
    id,
    type: 'function',
    function: { name: 'read_file', arguments: '{"path":"src/orders/refund.ts"}' },
  }
  const messages = [
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: id, content: 'Error: no such file' },
  ]
  return messages.map((message) => `,${JSON.stringify(message)}`).join('')
}

/** Most results are short and a few are long; the mean is `average`. */
function variedSize(random, average) {
  return average * (0.2 + 3.2 * random() ** 3)
}

function opening(random, bytes) {
  const system = linesFrom(SENTENCES, random, Math.min(SYSTEM_BYTES, bytes / 16), ' ')
  const messages = [
    { role: 'system', content: system },
    { role: 'user', content: `Task ${STAMP}: make the refund tests pass.` },
  ]
  return `{"model":"gpt-bench","messages":${JSON.stringify(messages).slice(0, -1)}`
}

function ending(bytes, isStream, isTalk) {
  const tools = isTalk ? undefined : toolsOf(bytes < SIZES['32KB'] ? 0 : Math.min(TOOL_BYTES, bytes / 4))
  const stream = isStream ? { stream: true, stream_options: { include_usage: true } } : { stream: false }
  return `],${JSON.stringify({ tools, ...stream }).slice(1)}`
}

/** One turn of a talk without tools. */
function talkTurn(random, _index, bytes) {
  const messages = [
    { role: 'assistant', content: linesFrom(SENTENCES, random, bytes / 2, ' ') },
    { role: 'user', content: linesFrom(SENTENCES, random, bytes / 2, ' ') },
  ]
  return messages.map((message) => `,${JSON.stringify(message)}`).join('')
}

/**
 * A conversation that grows past `bytes` bytes by one turn, a very small one by some. `turns`: how many it takes to get
 * there; as many as it needs by default. `isTalk`: it has no tools, and Governor relays it unguarded.
 */
export function conversationOf(bytes, { turns, isStream = false, isTalk = false } = {}) {
  const random = numbersFrom(bytes)
  const first = opening(random, bytes)
  const last = ending(bytes, isStream, isTalk)
  const turnOf = isTalk ? talkTurn : turn
  const fixed = Buffer.byteLength(first) + Buffer.byteLength(last)
  const average = turns ? (bytes - fixed) / turns : Math.min(AVERAGE_RESULT, bytes / 16)
  const middle = []
  let length = fixed
  while (turns ? middle.length < turns : length < bytes || middle.length < MIN_TURNS) {
    const next = turnOf(random, middle.length, variedSize(random, average))
    middle.push(next)
    length += Buffer.byteLength(next)
  }
  if (!turns && middle.length > MIN_TURNS) middle.push(turnOf(random, middle.length, average))
  return { first, turns: middle, last }
}

/** The body with the first `turns` turns and then `repeated` equal ones, as JSON text. */
export function bodyOf(conversation, turns, repeated = 0) {
  const loop = Array.from({ length: repeated }, (_, index) => repeatedTurn(index))
  return conversation.first + [...conversation.turns.slice(0, turns), ...loop].join('') + conversation.last
}

function messageBlocks({ role, content, tool_calls: calls = [], tool_call_id: id }) {
  if (role === 'tool') return { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content }] }
  const text = content ? [{ type: 'text', text: content }] : []
  const uses = calls.map(({ id, function: { name, arguments: input } }) => ({
    type: 'tool_use',
    id,
    name,
    input: JSON.parse(input),
  }))
  return { role, content: [...text, ...uses] }
}

/** The same request as a client of Anthropic's Messages sends it. */
export function asMessages(body) {
  const { model, messages, tools = [], stream } = JSON.parse(body)
  const system = messages.filter(({ role }) => role === 'system').map(({ content }) => content)
  const rest = messages.filter(({ role }) => role !== 'system')
  return JSON.stringify({
    model,
    max_tokens: 4096,
    system: system.join('\n'),
    messages: rest.map(messageBlocks),
    tools: tools.map(({ function: { name, description, parameters } }) => ({
      name,
      description,
      input_schema: parameters,
    })),
    stream,
  })
}
