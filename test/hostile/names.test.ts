/** Names that clients and models choose, on all the ways by which Governor shows them. */
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { ask } from '../support/admin.ts'
import { startBoth } from '../support/governor.ts'

/** More runs take longer and find more. */
const RUNS = Number(process.env['HOSTILE_RUNS'] ?? 30)

/** What no log line, label or view may hold, as the client's texts begin with it. */
const SECRET = 'only-the-provider-may-see-this'

const name = fc.oneof(
  fc.constantFrom(
    ...['__proto__', 'constructor', 'prototype', 'toString', 'hasOwnProperty', '', ' ', '.', '..', '../../etc/passwd'],
    ...['<img src=x onerror=alert(1)>', '"><script>', "'; DROP TABLE", '{{7*7}}', '%s%n', 'a\nb', 'a\r\nX: y'],
    ...[
      '\u0000',
      '\u001b[31mred\u001b[2J',
      '\u202egnp.exe',
      '\u2028',
      '\ud800',
      '\ufeff',
      '目录'.repeat(90),
      'e\u0301'.repeat(99),
    ],
    ...['x'.repeat(10_240), 'y'.repeat(1_000_000), 'tool="a",le="1"} 1\n', 'governor_requests_total'],
  ),
  fc.string({ unit: 'binary', maxLength: 80 }),
  fc.string({ maxLength: 80 }),
)

/** A conversation that calls one tool again and again, so that a notice names it. */
function conversation(tool: string, model: string, id: string, session: string, length: number) {
  const call = { type: 'function', function: { name: tool, arguments: `{"a":"${SECRET}"}` } }
  const steps = Array.from({ length }, (_, at) => [
    { role: 'assistant', content: null, tool_calls: [{ id: `${id}${at}`, ...call }] },
    { role: 'tool', tool_call_id: `${id}${at}`, content: SECRET },
  ]).flat()
  return {
    model,
    metadata: { session_id: session },
    messages: [{ role: 'user', content: SECRET }, ...steps],
    tools: [{ type: 'function', function: { name: tool } }],
  }
}

it('no name of a tool, a model, a call or a session breaks a log line, a metric, a header or the API, or makes them grow', async () => {
  const { url, logs, provider } = await startBoth(({ json }) => ({
    calls: [
      {
        name: (json.tools as { function: { name: string } }[])[0]?.function.name ?? '',
        arguments: { a: SECRET },
      },
    ],
  }))
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${SECRET}` }
  await fc.assert(
    fc.asyncProperty(name, name, name, name, async (tool, model, id, session) => {
      for (const length of [1, 2, 3]) {
        const body = JSON.stringify(conversation(tool, model, id, session, length))
        const response = await fetch(`${url}/v1/chat/completions?key=${SECRET}`, {
          method: 'POST',
          headers,
          body,
        })
        expect(response.status).toBe(200)
        await response.text()
        expect(response.headers.get('x-governor-session') ?? 'none').toMatch(/^[\x20-\x7e]{1,200}$/)
      }
    }),
    { numRuns: RUNS },
  )
  // A path is the client's to choose, too.
  await fetch(`${url}/v1/${'p'.repeat(40_000)}/models`)
  expect(provider.requests.length).toBeGreaterThanOrEqual(RUNS)

  const { text: metrics } = await ask(url, '/metrics')
  const labels = [...metrics.matchAll(/tool="((?:[^"\\]|\\.)*)"/g)].map(([, label = '']) => label)
  expect(labels.length).toBeGreaterThan(0)
  for (const label of labels) expect(label).toMatch(/^[\w.:/@-]{1,64}$/)
  expect(new Set(labels).size).toBeLessThanOrEqual(101)

  const { text: sessions } = await ask(url, '/governor/sessions?limit=100')
  const rows = (JSON.parse(sessions) as { sessions: { id: string }[] }).sessions
  expect(rows.length).toBeGreaterThan(RUNS / 2)
  const views = await Promise.all(rows.map(({ id }) => ask(url, `/governor/sessions/${id}`)))
  for (const view of views) {
    expect(view.status).toBe(200)
    // A name is cut; what is shown of one session with one iteration stays small.
    expect(view.text.length).toBeLessThan(10_000)
  }
  for (const line of logs) {
    expect(() => JSON.parse(line)).not.toThrow()
    expect(line.length).toBeLessThan(2_500)
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not be there
    expect(line).not.toMatch(/[\u0000-\u0009\u000b-\u001f]/)
  }
  for (const shown of [metrics, sessions, ...logs, ...views.map(({ text }) => text)])
    expect(shown).not.toContain(SECRET)
})
