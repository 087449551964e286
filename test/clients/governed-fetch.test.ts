/** Governor inside a program: `governed(fetch)` between the clients of providers and a real `fetch`. */
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import Anthropic from '@anthropic-ai/sdk'
import fc from 'fast-check'
import OpenAI from 'openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { type GovernedOptions, governed } from '../../src/fetch/index.ts'
import type { ProxyEvent } from '../../src/telemetry/event.ts'
import { governorOf } from '../../src/types/index.ts'
import { askWithTools } from '../support/ai-sdk.ts'
import { startBackground } from '../support/background.ts'
import { runawayMessages } from '../support/messages.ts'
import { runaway, type Script, serve, startProvider } from '../support/provider.ts'
import { AI_SDKS, OPENAI_CLIENTS } from '../support/versions.ts'

async function providerOf(script: Script) {
  const provider = await startProvider(script)
  onTestFinished(() => provider.close())
  return provider
}

/** A server that answers every request with `answer`. */
async function serverOf(answer: (request: IncomingMessage, response: ServerResponse) => void) {
  const server = await serve((request, response) => {
    request.resume()
    answer(request, response)
  })
  onTestFinished(() => server.close())
  return server
}

/** Options, and a wait for an event of a kind. */
function watched(options: GovernedOptions = {}) {
  const events: ProxyEvent[] = []
  let look = () => {}
  return {
    options: {
      ...options,
      onEvent(event: ProxyEvent) {
        events.push(event)
        look()
      },
    },
    events,
    ended: () =>
      new Promise<ProxyEvent & { kind: 'request_ended' }>((resolve) => {
        look = () => {
          for (const event of events) if (event.kind === 'request_ended') resolve(event)
        }
        look()
      }),
  }
}

const BUDGET = { budget: { max_iterations: 3 } }
const ANSWER = 'This is what I found so far.'
const user = [{ role: 'user' as const, content: 'What is it?' }]
const search = {
  name: 'search',
  description: 'Search',
  parse: JSON.parse as (text: string) => { query: string },
  function: ({ query }: { query: string }) => `found ${query}`,
  parameters: { type: 'object', properties: { query: { type: 'string' } } },
}
const chat = { model: 'gpt-test', messages: user, tools: [{ type: 'function' as const, function: search }] }
const tool = { name: 'search', description: 'Search', input_schema: { type: 'object' as const } }
const messages = { model: 'claude-test', max_tokens: 100, messages: user, tools: [tool] }

describe('an agent with governed(fetch) whose answers are made in the background', () => {
  it('is stopped at its limit, and each of its answers counts once', async () => {
    const provider = await startBackground(runaway())
    const { options, events } = watched(BUDGET)
    const client = new OpenAI({ apiKey: 'sk-test', baseURL: `${provider.url}/v1`, fetch: governed(fetch, options) })
    let input: OpenAI.Responses.ResponseInput = user
    let response: OpenAI.Responses.Response | undefined
    for (let calls = 0; calls < 10 && input.length > 0; calls++) {
      const previous = response ? { previous_response_id: response.id } : {}
      const tools = [{ type: 'function' as const, name: 'search', strict: false, parameters: search.parameters }]
      response = await client.responses.create({ model: 'gpt-test', background: true, tools, input, ...previous })
      while (response.status === 'queued') response = await client.responses.retrieve(response.id)
      input = response.output.flatMap((item) =>
        item.type === 'function_call'
          ? [{ type: 'function_call_output' as const, call_id: item.call_id, output: 'found nothing' }]
          : [],
      )
    }
    expect(governorOf(response)).toMatchObject({ terminal_state: 'tool_limit_reached' })
    expect(events.flatMap((event) => (event.kind === 'answered' ? [event.usage.input] : []))).toEqual([
      100, 100, 100, 100,
    ])
    expect(provider.gets).toHaveLength(6)
  })
})

describe.each([false, true])('an agent with governed(fetch) (stream: %s)', (stream) => {
  it.each(OPENAI_CLIENTS)('gets the final answer at its limit from $name', async ({ OpenAI: Client }) => {
    const provider = await providerOf(runaway())
    const fetched = governed(fetch, BUDGET)
    const client = new Client({ apiKey: 'sk-test', baseURL: `${provider.url}/v1`, maxRetries: 0, fetch: fetched })
    const options = { maxChatCompletions: 30 }
    const runner = stream
      ? client.chat.completions.runTools({ ...chat, stream: true }, options)
      : client.chat.completions.runTools(chat, options)
    expect(await runner.finalContent()).toBe(ANSWER)
    const last = await runner.finalChatCompletion()
    if (!stream) expect(governorOf(last)).toMatchObject({ terminal_reason: 'max_iterations', budget_used: 3 })
    expect(provider.requests).toHaveLength(4)
    expect(provider.requests[0]?.header('authorization')).toBe('Bearer sk-test')
  })

  it('gets the final answer at its limit from the client of Anthropic', async () => {
    const provider = await providerOf(runawayMessages())
    const fetched = governed(fetch, BUDGET)
    const client = new Anthropic({ apiKey: 'sk-test', baseURL: provider.url, maxRetries: 0, fetch: fetched })
    const run = client.beta.messages.toolRunner({
      ...messages,
      stream,
      max_iterations: 30,
      thread: false,
      tools: [{ ...tool, run: () => 'found', parse: (input: unknown) => input }],
    })
    const last = await run.runUntilDone()
    expect(last.content.at(-1)).toMatchObject({ type: 'text', text: ANSWER })
    expect(provider.requests).toHaveLength(4)
  })

  it.each(AI_SDKS)('gets the final answer at its limit from $name', async (sdk) => {
    const provider = await providerOf(runaway())
    const how = { apiKey: 'sk-test', baseURL: `${provider.url}/v1`, fetch: governed(fetch, BUDGET) }
    const { text, steps } = await askWithTools(sdk, sdk.createOpenAI(how).chat('gpt-test'), stream, {
      maxOutputTokens: 100,
    })
    expect([text, steps]).toEqual([ANSWER, 4])
    const other = await providerOf(runawayMessages())
    const anthropic = sdk.createAnthropic({ ...how, baseURL: `${other.url}/v1` })
    expect(await askWithTools(sdk, anthropic('claude-test'), stream, { maxOutputTokens: 100 })).toMatchObject({
      text: ANSWER,
      steps: 4,
    })
  })
})

describe('a request that is aborted', () => {
  /** A server that begins an event stream, or not even that, and then is silent. */
  const silent = async (begins: boolean) => {
    let asked: (request: IncomingMessage) => void
    const request = new Promise<IncomingMessage>((resolve) => {
      asked = resolve
    })
    const { url } = await serverOf((incoming, response) => {
      if (begins) {
        response.writeHead(200, { 'content-type': 'text/event-stream' })
        const delta = { role: 'assistant', content: 'Well' }
        response.write(`data: ${JSON.stringify({ id: 'c', choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`)
      }
      asked(incoming)
    })
    return {
      url,
      closed: async () => {
        const { socket } = await request
        await new Promise((resolve) => socket.once('close', resolve))
      },
      request,
    }
  }

  it.each(OPENAI_CLIENTS)('before its answer rejects as without Governor: $name', async ({ OpenAI: Client }) => {
    const { url, request, closed } = await silent(false)
    const { options, ended } = watched()
    const fetched = governed(fetch, options)
    const client = new Client({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0, fetch: fetched })
    const abort = new AbortController()
    const answer = client.chat.completions.create(chat, { signal: abort.signal })
    const over = closed()
    await request
    abort.abort()
    await expect(answer).rejects.toThrow(/aborted/i)
    await over
    expect(await ended()).toMatchObject({ outcome: 'client_gone', status: 0 })
  })

  it('in the middle of its stream ends the stream and the connection to the provider', async () => {
    const { url, closed } = await silent(true)
    const { options, ended } = watched()
    const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0, fetch: governed(fetch, options) })
    const over = closed()
    const stream = await client.chat.completions.create({ ...chat, stream: true })
    for await (const { choices } of stream) {
      expect(choices[0]?.delta.content).toBe('Well')
      break
    }
    await over
    expect(await ended()).toMatchObject({ outcome: 'client_gone', status: 200 })
  })

  it.each(AI_SDKS)('by $name ends the connection to the provider', async ({ ai, createOpenAI }) => {
    const { url, request, closed } = await silent(true)
    const { options, ended } = watched()
    const model = createOpenAI({ apiKey: 'k', baseURL: `${url}/v1`, fetch: governed(fetch, options) }).chat('m')
    const abort = new AbortController()
    const inputSchema = ai.jsonSchema<{ query: string }>({ type: 'object' })
    const tools = { search: ai.tool({ inputSchema, execute: ({ query }) => query }) }
    const result = ai.streamText({ model, prompt: 'Hi', tools, abortSignal: abort.signal, onError: () => undefined })
    const over = closed()
    const read = Promise.resolve(result.consumeStream({ onError: () => undefined }))
    await request
    abort.abort()
    await Promise.all([over, read])
    expect(await ended()).toMatchObject({ outcome: 'client_gone' })
  })

  it('that was aborted before is not sent', async () => {
    const provider = await providerOf(runaway())
    const sent = { method: 'POST', body: JSON.stringify(chat), signal: AbortSignal.abort(new Error('not now')) }
    await expect(governed()(`${provider.url}/v1/chat/completions`, sent)).rejects.toThrow('not now')
    expect(provider.requests).toHaveLength(0)
  })
})

describe('without a decision governed(fetch)', () => {
  it('gives every byte, the status and the fields that fetch gives, for any body in any pieces', async () => {
    const pieces = fc.array(fc.uint8Array({ minLength: 1, maxLength: 40_000 }), { minLength: 1, maxLength: 8 })
    let next: { status: number; pieces: Uint8Array[]; isZipped: boolean } | undefined
    const { url } = await serverOf((_, response) => {
      const { status = 200, pieces: all = [], isZipped = false } = next ?? {}
      const body = Buffer.concat(all)
      response.writeHead(status, {
        'content-type': 'application/octet-stream',
        'x-one': 'one',
        ...(isZipped ? { 'content-encoding': 'gzip' } : {}),
      })
      for (const piece of isZipped ? [gzipSync(body)] : all) response.write(piece)
      response.end()
    })
    const fetched = governed(fetch)
    const ask = async (by: typeof fetch, number: number) => {
      const asked = [{ role: 'user', content: String(number) }]
      const body = JSON.stringify({ ...chat, messages: asked })
      const response = await by(`${url}/v1/chat/completions`, { method: 'POST', body })
      const bytes = Buffer.from(await response.arrayBuffer())
      return { status: response.status, url: response.url, bytes, one: response.headers.get('x-one') }
    }
    let number = 0
    await fc.assert(
      fc.asyncProperty(pieces, fc.constantFrom(200, 201, 404, 418), fc.boolean(), async (all, status, isZipped) => {
        next = { status, pieces: all, isZipped }
        number++
        expect(await ask(fetched, number)).toEqual(await ask(fetch, number))
      }),
      { numRuns: 40 },
    )
  })

  it('gives a large body to a reader that pauses, and holds the provider back meanwhile', async () => {
    const size = 4_000_000
    let written = 0
    const { url } = await serverOf(async (_, response) => {
      response.writeHead(200, { 'content-type': 'application/octet-stream' })
      for (; written < size; written += 50_000) if (!response.write(Buffer.alloc(50_000))) await once(response, 'drain')
      response.end()
    })
    const sent = { method: 'POST', body: JSON.stringify(chat) }
    const { body } = await governed()(`${url}/v1/chat/completions`, sent)
    let length = 0
    for await (const chunk of body ?? []) {
      length += chunk.length
      await new Promise(setImmediate)
    }
    expect(length).toBe(size)
  })

  it('gives what it does not guard to fetch as it is', async () => {
    const calls: unknown[][] = []
    const fetched = governed(async (...call) => {
      calls.push(call)
      return Response.json({})
    })
    const request = new Request('http://127.0.0.1:1/v1/files', { method: 'POST', body: 'a file' })
    const init = { headers: { 'x-one': 'one' } }
    await fetched(request, init)
    expect(calls).toEqual([[request, init]])
    expect(calls[0]?.[0]).toBe(request)
    expect(await request.text()).toBe('a file')
  })

  it('keeps the headers for Governor from what it does not guard, and a form whole', async () => {
    const provider = await providerOf(() => ({ body: {} }))
    const headers = { 'X-Governor-Session': 'mine', 'x-one': 'one' }
    const form = new FormData()
    form.set('file', new Blob(['a file']), 'name.txt')
    const fetched = governed()
    await fetched(`${provider.url}/v1/files`, { method: 'POST', headers, body: form })
    await fetched(new Request(`${provider.url}/v1/files`, { method: 'POST', headers, body: form }))
    expect(provider.requests.length).toBe(2)
    for (const request of provider.requests) {
      expect([request.header('x-governor-session'), request.header('x-one')]).toEqual([undefined, 'one'])
      const [, boundary = '?'] = /boundary=(\S+)/.exec(request.header('content-type') ?? '') ?? []
      expect(request.body.toString()).toContain(`--${boundary}\r\n`)
      expect(request.body.toString()).toContain('a file')
    }
  })

  it('passes on what else its caller asks of fetch, and takes a Request', async () => {
    const provider = await providerOf(runaway())
    let init: RequestInit | undefined
    const fetched = governed((to, how) => {
      init = how
      return fetch(to, how)
    })
    const body = JSON.stringify(chat)
    const response = await fetched(new Request(`${provider.url}/v1/chat/completions`, { method: 'POST', body }), {
      redirect: 'error',
    })
    expect(response.headers.get('x-governor-iteration')).toBe('1/300')
    expect(init).toMatchObject({ redirect: 'error', method: 'POST' })
    expect(provider.requests[0]?.body.toString()).toBe(body)
  })

  it('sends a request to the address that it names, whatever stands before the path of the API', async () => {
    const provider = await providerOf(runaway())
    const fetched = governed()
    const paths = [
      '/team/v1/chat/completions',
      '/openai/deployments/m/chat/completions?api-version=1',
      '/api/v1/messages',
    ]
    for (const path of paths) {
      const response = await fetched(provider.url + path, { method: 'POST', body: JSON.stringify(messages) })
      expect(response.status).toBe(200)
    }
    expect(provider.requests.map(({ target }) => target)).toEqual(paths)
  })

  it('rejects with the error of fetch if the provider cannot be reached, and breaks off with it', async () => {
    const { url, close } = await serve(() => undefined)
    await close()
    const sent = { method: 'POST', body: JSON.stringify(chat) }
    const fails = (by: typeof fetch) => by(`${url}/v1/chat/completions`, sent).catch((error) => error)
    const [error, own] = [await fails(governed()), await fails(fetch)]
    expect([error.name, error.message, error.cause.code]).toEqual([own.name, own.message, own.cause.code])
    const broken = await serverOf((_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: {}\n\n')
      setImmediate(() => response.destroy())
    })
    const response = await governed()(`${broken.url}/v1/chat/completions`, sent)
    await expect(response.text()).rejects.toThrow()
  })
})

it('the built export works without packages, and a program that uses it ends by itself', async () => {
  const provider = await providerOf(runaway())
  const folder = mkdtempSync(join(tmpdir(), 'governor-fetch-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const installed = join(folder, 'node_modules', 'agent-governor')
  cpSync('dist', join(installed, 'dist'), { recursive: true, filter: (path) => !path.endsWith('.map') })
  cpSync('package.json', join(installed, 'package.json'))
  const file = join(folder, 'agent.mjs')
  const sent = JSON.stringify({ method: 'POST', body: JSON.stringify(chat) })
  writeFileSync(
    file,
    `import { governed } from 'agent-governor/fetch'
    const fetched = governed(fetch, { budget: { run: { max_cost_usd: 1 } } })
    const { headers } = await fetched('${provider.url}/v1/chat/completions', ${sent})
    console.log(headers.get('x-governor-iteration'))`,
  )
  const { stdout } = await promisify(execFile)(process.execPath, [file])
  expect(stdout).toBe('1/300\n')
})

it('an option that is wrong is an error that names it', () => {
  const wrong = { budget: { max_iterations: -1 } }
  expect(() => governed(fetch, wrong)).toThrow(/governed: budget\.max_iterations: found -1/)
  for (const section of ['server', 'upstreams', 'usage', 'store', 'budgets'])
    expect(() => governed(fetch, { [section]: {} } as object)).toThrow(`governed: ${section}: expected one of agents, `)
  expect(() => governed(fetch, { agents: { spawn_tools: ['start'] } })).not.toThrow()
  // As JavaScript lets one write it.
  expect(() => governed({ budget: {} } as never)).toThrow('governed: expected a fetch, and the options behind it')
})
