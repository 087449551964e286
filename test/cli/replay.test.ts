import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, describe, expect, it } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import type { Terminal } from '../../src/cli/command.ts'
import { captureTerminal } from '../support/terminal.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-replay-'))
afterAll(() => rmSync(folder, { recursive: true }))

let files = 0
function fileWith(text: string): string {
  const file = join(folder, `${++files}.jsonl`)
  writeFileSync(file, text)
  return file
}

type TerminalOptions = Partial<Pick<Terminal, 'env' | 'isInteractive' | 'input'>>

async function governor(args: readonly string[], options: TerminalOptions = {}) {
  const terminal = captureTerminal(options)
  const code = await run(args, terminal)
  return { code, out: terminal.printed, err: terminal.complaints }
}

type Json = Readonly<Record<string, unknown>>
type Made = readonly [tool: string, args: string, result: string]

const user = (content: string): Json => ({ role: 'user', content })

/** One response with one call, and its result. */
const chat = ([name, args, result]: Made, at: number): Json[] => [
  {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: `c${at}`, type: 'function', function: { name, arguments: args } }],
  },
  { role: 'tool', tool_call_id: `c${at}`, content: result },
]

const LIST: Made = ['list', '{"path":"."}', 'a.ts b.ts c.ts d.ts']
const times = (count: number, made: Made): Made[] => Array.from({ length: count }, () => made)

const lineOf = (id: string, messages: readonly Json[]) => `${JSON.stringify({ id, messages })}\n`
const talk = (id: string, made: readonly Made[]) => lineOf(id, [user('Go.'), ...made.flatMap(chat)])

/** The findings as `index:verdict:pattern:tool`. */
async function judged(text: string, ...args: readonly string[]): Promise<string[]> {
  const { code, out } = await governor(['replay', '--json', ...args, fileWith(text)])
  expect(code).toBe(0)
  return out
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Json)
    .map((found) => [found['call_index'], found['verdict'], found['pattern'], found['tool']].join(':'))
}

describe('governor replay of large conversations', () => {
  const calls = (step: number, count: number): Json[] => [
    {
      role: 'assistant',
      content: null,
      tool_calls: Array.from({ length: count }, (_, at) => ({
        id: `c${step}_${at}`,
        type: 'function',
        function: { name: 'f', arguments: JSON.stringify({ step, at }) },
      })),
    },
    ...Array.from({ length: count }, (_, at) => ({
      role: 'tool',
      tool_call_id: `c${step}_${at}`,
      content: [{ type: 'text', text: `${step} ${at} ${'a'.repeat(300)}` }],
    })),
  ]
  const parts = (count: number, length: number): Json[] => [
    {
      role: 'user',
      content: Array.from({ length: count }, () => ({ type: 'text', text: 'b'.repeat(length) })),
    },
  ]

  it.each([
    ['3,000 calls in one turn', [user('Go.'), ...calls(0, 3_000), ...calls(1, 3_000)]],
    ['100 turns of 100 calls', [user('Go.'), ...Array.from({ length: 100 }, (_, step) => calls(step, 100)).flat()]],
    ['a question of 100 texts of 100 KB', [...parts(100, 100_000), ...calls(0, 1)]],
    ['a question of 60,000 texts', [...parts(60_000, 5), ...calls(0, 1)]],
  ])('judges %s, and the lines after it', async (_, messages) => {
    const found = await judged(lineOf('large', messages) + talk('loop', times(12, LIST)))
    expect(found).toContain('2:warn:repetition:list')
    const { err } = await governor(['replay', '--json', fileWith(lineOf('large', messages))])
    expect(err).toBe('')
  })
})

describe('governor replay --json', () => {
  const blocks = (results: readonly unknown[], beside: readonly Json[] = []): Json[] => [
    user('Go.'),
    ...results.flatMap((content, at) => [
      { role: 'assistant', content: [{ type: 'tool_use', id: `t${at}`, name: 'shot', input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: `t${at}`, content }, ...beside] },
    ]),
  ]
  const image = (data: string) => [{ type: 'image', source: { type: 'base64', data } }]

  it('treats different pictures in tool results as different results', async () => {
    const same = ['AA', 'AA', 'AA'].map(image)
    expect(await judged(lineOf('a', blocks(same)))).toEqual(['2:warn:repetition:shot'])
    expect(await judged(lineOf('a', blocks(['AA', 'AB', 'AC'].map(image))))).toEqual([])
  })

  it('treats text beside tool results as written by a human, unless a harness is known to write it', async () => {
    const results = Array(12).fill('nothing to be seen')
    const text = (value: string) => [{ type: 'text', text: value }]
    const reminded = await judged(lineOf('a', blocks(results, text('<system-reminder>Mind.</system-reminder>'))))
    expect(reminded.some((found) => found.includes('block'))).toBe(true)
    const asked = await judged(lineOf('a', blocks(results, text('Look again, please.'))))
    expect(asked.some((found) => found.includes('block'))).toBe(false)
  })

  it('reads each line as a separate conversation, for any API', async () => {
    const body = { model: 'm', system: 'You help.', messages: blocks(['ok', 'ok', 'ok']) }
    const text = `${JSON.stringify(body)}\n${talk('b', times(3, LIST))}`
    expect(await judged(text)).toEqual(['2:warn:repetition:shot', '2:warn:repetition:list'])
  })

  it('reads a list of Responses items as one conversation, in any order of their fields', async () => {
    const step = (at: number): Json[] => [
      { id: `i${at}`, type: 'custom_tool_call', call_id: `c${at}`, name: 'run', input: 'ls' },
      { id: `o${at}`, type: 'custom_tool_call_output', call_id: `c${at}`, output: 'a.ts' },
    ]
    expect(await judged(JSON.stringify([...step(0), ...step(1), ...step(2)]))).toEqual(['2:warn:repetition:run'])
  })

  it('reports every line as not JSON when the file as a whole is not JSON', async () => {
    const { err, code } = await governor(['replay', '--json', fileWith('{\n"messages": [\n')])
    expect(code).toBe(1)
    expect(err).toContain('line 1: not JSON')
    expect(err).toContain('line 2: not JSON')
  })

  it('reports ten skipped lines of a file one by one, and counts the others', async () => {
    const pretty = JSON.stringify({ messages: times(3, LIST).flatMap(chat) }, null, 2)
    const count = pretty.split('\n').length
    const { err } = await governor(['replay', '--json', fileWith(pretty), fileWith('no JSON\n')])
    const lines = err.split('\n')
    expect(lines.slice(0, 10).every((line) => line.endsWith('not JSON: skipped'))).toBe(true)
    expect(lines[10]).toMatch(new RegExp(`^governor: \\S+: ${count - 10} more lines skipped$`))
    expect(lines[11]).toMatch(/line 1: not JSON: skipped$/)
  })

  it('accepts a byte order mark at the start of a file', async () => {
    const text = talk('a', times(3, LIST))
    expect(await judged(`\ufeff${text}`)).toEqual(await judged(text))
    expect(await judged(`\ufeff${text.trim()}`)).toEqual(['2:warn:repetition:list'])
  })

  it('reads a file with one message per line as one conversation', async () => {
    const linesOf = (messages: readonly Json[]) => messages.map((message) => JSON.stringify(message)).join('\n')
    const file = fileWith(`${linesOf([user('Go.'), ...times(3, LIST).flatMap(chat)])}\n\n`)
    const { out, err } = await governor(['replay', '--json', file])
    expect({ out, err }).toEqual({
      out: `{"id":"${file}:1","call_index":2,"verdict":"warn","pattern":"repetition","tool":"list"}\n`,
      err: '',
    })
    const items = [0, 1, 2].flatMap((at): Json[] => [
      { type: 'custom_tool_call', call_id: `c${at}`, name: 'shell', input: 'ls' },
      { type: 'custom_tool_call_output', call_id: `c${at}`, output: 'a.ts' },
    ])
    expect(await judged(linesOf([user('Go.'), ...items]))).toEqual(['2:warn:repetition:shell'])
  })

  it('reports a line that is not a message in a file with one message per line, and continues', async () => {
    const messages = [user('Go.'), ...times(3, LIST).flatMap(chat)].map((message) => JSON.stringify(message))
    const file = fileWith([...messages.slice(0, 2), 'no JSON', ...messages.slice(2), talk('fine', [LIST])].join('\n'))
    const { out, err } = await governor(['replay', '--json', file])
    expect(out).toContain('"call_index":2,"verdict":"warn"')
    expect(err).toBe(`governor: ${file}, line 3: not JSON: skipped\n`)
  })

  it('prints conversation, call, verdict, pattern and tool for each finding', async () => {
    const file = fileWith(talk('fine', [LIST]) + talk('stuck', times(3, LIST)))
    const { code, out, err } = await governor(['replay', '--json', file])
    expect({ code, err }).toEqual({ code: 0, err: '' })
    expect(out).toBe('{"id":"stuck","call_index":2,"verdict":"warn","pattern":"repetition","tool":"list"}\n')
  })

  it('reports where it would have warned, blocked and stopped, and nothing after the stop', async () => {
    expect(await judged(talk('stuck', times(20, LIST)))).toEqual([
      '2:warn:repetition:list',
      '4:warn:repetition:list',
      '6:block:repetition:list',
      '7:block:repetition:list',
      '8:block:repetition:list',
      '9:block:repetition:list',
      '10:stop:repetition:list',
    ])
  })

  it('starts a new run at a human message, but not at a message that a harness writes', async () => {
    const stuck = times(12, LIST).flatMap(chat)
    const more = times(3, LIST).flatMap(chat)
    const harness = user('<system-reminder>Mind the time.</system-reminder>')
    const around = (between: Json) => lineOf('x', [user('Go.'), ...stuck, between, ...more])
    const verdicts = ['2:warn', '4:warn', '6:block', '7:block', '8:block', '9:block', '10:stop']
    const short = async (text: string) => (await judged(text)).map((found) => found.split(':', 2).join(':'))
    expect(await short(around(harness))).toEqual(verdicts)
    expect(await short(around(user('Once more.')))).toEqual([...verdicts, '14:warn'])
  })

  it.each([
    {
      shape: 'functions of old',
      messages: times(3, LIST).flatMap(([name, args, content]) => [
        { role: 'assistant', content: '', function_call: { name, arguments: args } },
        { role: 'function', name, content },
      ]),
    },
    {
      shape: 'custom tools',
      messages: times(3, LIST).flatMap(([name, input, content], at) => [
        { role: 'assistant', tool_calls: [{ id: `c${at}`, type: 'custom', custom: { name, input } }] },
        { role: 'tool', tool_call_id: `c${at}`, content: [{ type: 'text', text: content }] },
      ]),
    },
    {
      shape: "Anthropic's blocks",
      messages: times(3, LIST).flatMap(([name, args, content], at) => [
        { role: 'assistant', content: [{ type: 'tool_use', id: `t${at}`, name, input: JSON.parse(args) }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: `t${at}`, content }] },
      ]),
    },
    {
      shape: 'the items of Responses',
      messages: times(3, LIST).flatMap(([name, args, output], at) => [
        { type: 'function_call', call_id: `c${at}`, name, arguments: args },
        { type: 'function_call_output', call_id: `c${at}`, output },
      ]),
    },
    {
      shape: "Gemini's contents",
      messages: times(3, LIST).flatMap(([name, args, output]) => [
        { role: 'model', parts: [{ functionCall: { name, args: JSON.parse(args) } }] },
        { role: 'user', parts: [{ functionResponse: { name, response: { output } } }] },
      ]),
    },
    {
      shape: 'the tools that Responses names by their types, with reasoning between',
      messages: [1, 2, 3].flatMap((at) => [
        { type: 'reasoning', encrypted_content: `r${at}` },
        { type: 'local_shell_call', call_id: `c${at}`, action: { type: 'exec', command: ['ls'] } },
        { type: 'web_search_call', id: `w${at}` },
        { type: 'local_shell_call_output', id: `c${at}`, output: '{"output":"a"}' },
      ]),
    },
    {
      shape: 'ids that are used again and again',
      messages: times(3, LIST).flatMap((made) => chat(made, 0)),
    },
    {
      shape: 'results that differ only in times',
      messages: [1, 2, 3].flatMap((at) => chat(['test', '{}', `ok in 0.${at}s`], at)),
    },
    {
      shape: 'arguments in another order',
      messages: ['{"a":1,"b":2}', '{"b":2,"a":1}', '{ "a": 1, "b": 2 }'].flatMap((args, at) =>
        chat(['test', args, 'ok'], at),
      ),
    },
    {
      shape: 'arguments that are no JSON',
      messages: times(3, ['test', '{"a": ', 'usage: test']).flatMap(chat),
    },
  ])('reads $shape', async ({ messages }) => {
    const has = (key: string) => messages.some((message) => key in message)
    const key = has('type') ? 'input' : has('parts') ? 'contents' : 'messages'
    for (const line of [{ [key]: messages }, messages]) {
      const found = await judged(JSON.stringify(line))
      expect(found.map((one) => one.split(':', 3).join(':'))).toEqual(['2:warn:repetition'])
    }
  })

  it('numbers calls through the whole conversation, but counts equal parallel calls as one', async () => {
    const call = (id: string) => ({ id, type: 'function', function: { name: 'list', arguments: '{}' } })
    const step = (...ids: string[]) => [
      { role: 'assistant', tool_calls: ids.map(call) },
      ...ids.map((id) => ({ role: 'tool', tool_call_id: id, content: 'a' })),
    ]
    const messages = [...step('1', '2', '3'), ...step('4', '5'), ...step('6', '7')]
    expect(await judged(lineOf('x', messages))).toEqual(['5:warn:repetition:list'])
  })

  it('says in mode observe what enforcing would have blocked and stopped', async () => {
    const config = join(folder, 'observe.yaml')
    writeFileSync(config, 'loop_guard: { mode: observe }')
    const text = talk('stuck', times(20, LIST))
    const enforced = await judged(text)
    expect(enforced.at(-1)).toContain('stop')
    expect(await judged(text, '--config', config)).toEqual(enforced)
  })

  it('numbers the calls of one response right, although their ids are equal', async () => {
    const call = (url: string) => ({
      id: 'fetch',
      type: 'function',
      function: { name: 'fetch', arguments: `"${url}"` },
    })
    const step = (at: number): Json[] => [
      { role: 'assistant', content: null, tool_calls: [call(`/page/${at}`), call('/info')] },
      { role: 'tool', tool_call_id: 'fetch', content: `page ${at} of a book` },
      { role: 'tool', tool_call_id: 'fetch', content: 'a book of twenty chapters' },
    ]
    const found = await judged(lineOf('pages', [user('Read.'), ...[0, 1, 2, 3].flatMap(step)]))
    expect(found).toEqual(['5:warn:repetition:fetch'])
  })

  it('uses the thresholds of --config', async () => {
    const config = join(folder, 'strict.yaml')
    writeFileSync(config, 'loop_guard: { repetition_threshold: 2, max_warnings_before_block: 1 }\n')
    expect(await judged(talk('x', times(4, LIST)), '--config', config)).toEqual([
      '1:warn:repetition:list',
      '3:block:repetition:list',
    ])
  })

  it('reports a line that is not a conversation with its number, and continues', async () => {
    const file = fileWith(`{"id": 1\n\n{"id":"x"}\n7\n${talk('stuck', times(3, LIST))}`)
    const { code, out, err } = await governor(['replay', '--json', file])
    expect(code).toBe(0)
    expect(out).toContain('"id":"stuck"')
    expect(err.split('\n')).toEqual([
      `governor: ${file}, line 1: not JSON: skipped`,
      `governor: ${file}, line 3: not a conversation: expected an object with messages, input or contents: skipped`,
      `governor: ${file}, line 4: not a conversation: expected an object with messages, input or contents: skipped`,
      '',
    ])
  })

  it('never fails unexpectedly, whatever a conversation contains', async () => {
    const part = fc.oneof(
      fc.record(
        {
          role: fc.constantFrom('user', 'assistant', 'tool', 'function', 'x', null),
          type: fc.constantFrom('function_call', 'function_call_output', 'message', 3),
          content: fc.oneof(fc.string(), fc.array(fc.jsonValue()), fc.jsonValue()),
          tool_calls: fc.oneof(fc.jsonValue(), fc.array(fc.record({ id: fc.jsonValue(), function: fc.jsonValue() }))),
          function_call: fc.jsonValue(),
        },
        { requiredKeys: [] },
      ),
      fc.jsonValue(),
    )
    await fc.assert(
      fc.asyncProperty(fc.array(part, { maxLength: 6 }), async (messages) => {
        const { code, err } = await governor(['replay', fileWith(JSON.stringify({ messages }))])
        expect(code).toBe(err === '' ? 0 : 1)
        expect(err).toMatch(/^$|line 1: not a conversation/)
      }),
      { numRuns: 200 },
    )
  })
})

describe('governor replay', () => {
  const text = talk('fine', [LIST]) + talk('stuck', times(3, LIST))

  it('prints a table and a summary', async () => {
    const { out } = await governor(['replay', fileWith(text)])
    expect(out.split('\n').map((line) => line.split(/ {2,}/))).toEqual([
      ['conversation', 'call', 'verdict', 'pattern', 'tool'],
      ['stuck', '2', 'warn', 'repetition', 'list'],
      [''],
      ['2 conversations, 4 tool calls: 1 warned, 0 with calls blocked, 0 stopped.'],
      [''],
    ])
  })

  it('identifies a conversation without an id by its file and line', async () => {
    const { id: _, ...rest } = JSON.parse(talk('x', times(3, LIST))) as Json
    const file = fileWith(`\n${JSON.stringify(rest)}`)
    expect((await governor(['replay', '--json', file])).out).toContain(`"id":${JSON.stringify(`${file}:2`)}`)
  })

  it('prints colours only to a terminal, and not if NO_COLOR is set', async () => {
    const file = fileWith(text)
    const coloured = async (options: TerminalOptions) =>
      (await governor(['replay', file], options)).out.includes('\u001b[')
    expect(await coloured({ isInteractive: true })).toBe(true)
    expect(await coloured({ isInteractive: true, env: { NO_COLOR: '1' } })).toBe(false)
    expect(await coloured({})).toBe(false)
  })

  it('prints no control characters that a recording contains', async () => {
    const { out } = await governor(['replay', fileWith(talk('\u001b[2Jx', times(3, ['\u001b]0;hi\u0007', '{}', 'a'])))])
    expect(out).toContain('·[2Jx')
    expect(out).not.toContain('\u001b')
  })

  it('reads standard input when the file is -, however the bytes are split', async () => {
    const bytes = Buffer.from(talk('gestört', times(3, LIST)) + talk('b', times(3, LIST)).trimEnd())
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat(bytes.length), { maxLength: 8 }), async (cuts) => {
        const at = [0, ...cuts.toSorted((a, b) => a - b), bytes.length]
        async function* input() {
          for (const [index, start] of at.entries()) yield bytes.subarray(start, at[index + 1])
        }
        const { out } = await governor(['replay', '--json', '-'], { input })
        expect(out.split('\n').map((line) => line.slice(0, 16))).toEqual(['{"id":"gestört",', '{"id":"b","call_', ''])
      }),
      { numRuns: 50 },
    )
  })

  it('evaluates all files that it can read, and reports the others', async () => {
    const missing = join(folder, 'none.jsonl')
    const { code, out, err } = await governor(['replay', missing, folder, fileWith(text)])
    expect(code).toBe(1)
    expect(err).toBe(
      `governor: ${missing}: can't be read (no such file)\ngovernor: ${folder}: can't be read (a folder)\n`,
    )
    expect(out).toContain('2 conversations')
  })

  it('says one line alone about each file where it can read none', async () => {
    const missing = ['one', 'two'].map((name) => join(folder, name))
    const complaints = missing.map((file) => `governor: ${file}: can't be read (no such file)\n`)
    for (const flags of [[], ['--json']])
      expect(await governor(['replay', ...flags, ...missing])).toMatchObject({
        code: 1,
        out: '',
        err: complaints.join(''),
      })
  })

  it.each([
    ['', []],
    ['\n\n', ['--json']],
    ['{"model":"gpt-test"}\n', ['--json']],
    ['no JSON\n', []],
  ])('exits with code 1 and says what it expects when the file contains only %j', async (text, flags) => {
    const { code, out, err } = await governor(['replay', ...flags, fileWith(text)])
    expect({ code, out }).toEqual({ code: 1, out: '' })
    expect(err.split('\n').at(-2)).toBe(
      'governor: no conversation was read: each line is expected to be one JSON object with messages, input or contents, such as a request body; `jq -c . FILE` writes JSON of many lines in one',
    )
  })

  it.each([
    { args: ['replay'], says: 'replay needs a file, or - for standard input' },
    {
      args: ['start', '--json'],
      says: '--json is for doctor, report, replay, sessions, session, stop, extend, pause, resume, budget, suggest',
    },
  ])('answers $args with exit code 2 and one line', async ({ args, says }) => {
    expect(await governor(args)).toEqual({
      code: 2,
      out: '',
      err: `governor: ${says}: --help shows the commands and flags\n`,
    })
  })
})
