/** Large requests that all wait for a slow model at once, in a process with as little memory as the sidecar of config/k8s. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import http from 'node:http'
import { resolve } from 'node:path'
import { text } from 'node:stream/consumers'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startProcess } from '../../support/process.ts'
import { serve } from '../../support/provider.ts'

const MEGABYTE = 1_048_576
const MEMORY = 512 * MEGABYTE
const THINKS_MS = 60_000

const user = (content: string) => ({ role: 'user', content })

/** Messages of about so many bytes, by what they are. */
const CONTENTS: Readonly<Record<string, (bytes: number) => unknown[]>> = {
  'one long text': (bytes) => [user('x'.repeat(bytes))],
  'texts beyond Latin-1': (bytes) =>
    Array.from({ length: bytes / 20_000 }, (_, at) => user(`${at} ${'x€'.repeat(5_000)}`)),
  'messages of one word': (bytes) => Array.from({ length: bytes / 32 }, () => user('a')),
  'calls and results': (bytes) =>
    Array.from({ length: bytes / 20_000 }, (_, at) => [
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: `c${at}`, type: 'function', function: { name: 'f', arguments: `{"at":${at}}` } }],
      },
      { role: 'tool', tool_call_id: `c${at}`, content: `${at} ${'r€'.repeat(5_000)}` },
    ]).flat(),
}

/** A model that thinks for so long after the last of `count` requests has come whole. */
async function startThinkingModel(count: number) {
  let whole = 0
  let answer = () => {}
  const thought = new Promise<void>((done) => {
    answer = done
  })
  const provider = await serve(async (request, response) => {
    await once(request.resume(), 'end')
    if (++whole === count) setTimeout(answer, THINKS_MS)
    await thought
    response.setHeader('content-type', 'application/json')
    response.end('{"choices":[{"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}]}')
  })
  onTestFinished(() => provider.close())
  return provider
}

/** Sends a body as a session of its own; returns the status and the verdict. */
async function send(url: string, agent: http.Agent, body: Buffer, session: string) {
  const headers = { 'content-length': body.length, 'x-governor-session': session }
  const request = http.request(`${url}/v1/chat/completions`, { method: 'POST', agent, headers })
  const replied = once(request, 'response') as Promise<[http.IncomingMessage]>
  request.end(body)
  const [response] = await replied
  const isAnswered = response.statusCode === 200 && (await text(response)).includes('Done.')
  return { isAnswered, isGuarded: response.headers['x-governor-verdict'] === 'allow' }
}

describe('a process that may use 512 MB', () => {
  it.each([
    { count: 2_000, size: MEGABYTE },
    { count: 200, size: 10 * MEGABYTE },
  ])('answers $count requests of $size bytes that wait for a model for a minute', async ({ count, size }) => {
    const contents = Object.values(CONTENTS)
    const provider = await startThinkingModel(count)
    const bodies = contents.map((make) =>
      Buffer.from(JSON.stringify({ messages: make(size), tools: [{ type: 'function', function: { name: 'f' } }] })),
    )
    const config = { budget: { max_iterations: 0 } }
    const governor = await startProcess(provider.url, config, {
      // The heap that Node 20 takes in a container of that size.
      nodeArgs: ['--max-old-space-size=256', '--import', resolve('test/faults/preload.mjs')],
      env: { MEMORY: String(MEMORY) },
    })
    const agent = new http.Agent({ maxSockets: Number.POSITIVE_INFINITY })
    onTestFinished(() => agent.destroy())
    const answers = await Promise.all(
      Array.from({ length: count }, (_, at) =>
        send(governor.url, agent, bodies[at % bodies.length] ?? Buffer.alloc(0), `session ${at}`),
      ),
    )
    expect(answers.filter(({ isAnswered }) => isAnswered)).toHaveLength(count)
    const guarded = answers.filter(({ isGuarded }) => isGuarded).length
    expect(guarded).toBeGreaterThan(0)
    const relayed = (reason: string) => governor.metric(`governor_failed_open_total{reason="${reason}",guard="none"}`)
    // 10 MB of messages of one word are more messages than Governor reads.
    expect(guarded + (await relayed('no_room')) + (await relayed('body_too_large'))).toBe(count)
    const status = readFileSync(`/proc/${governor.child.pid}/status`, 'utf8')
    const [, peak = ''] = /VmHWM:\s*(\d+) kB/.exec(status) ?? []
    expect(Number(peak) * 1_024).toBeLessThan(MEMORY)
  })
})
