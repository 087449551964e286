import { type CallableTool, type FunctionCall, GoogleGenAI, type Part } from '@google/genai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { mayCall, runawayGemini } from '../support/gemini.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type Script, startProvider } from '../support/provider.ts'

/** A tool that the SDK calls by itself. */
function searchTool(): CallableTool & { readonly called: FunctionCall[] } {
  const called: FunctionCall[] = []
  return {
    called,
    tool: () => Promise.resolve({ functionDeclarations: [{ name: 'search', description: 'Search' }] }),
    callTool(calls) {
      called.push(...calls)
      const parts = calls.map(({ id, name = '', args }) => ({
        functionResponse: {
          ...(id ? { id } : {}),
          name,
          response: { output: `found all about ${JSON.stringify(args)}` },
        },
      }))
      return Promise.resolve(parts as Part[])
    },
  }
}

const sdkAt = (baseUrl: string) => new GoogleGenAI({ apiKey: 'k', httpOptions: { baseUrl } })

/** Runs the SDK's automatic function calling, and returns what an application sees of it. */
async function run(url: string, streams: boolean) {
  const tool = searchTool()
  const request = { model: 'gemini-2.5-flash', contents: 'What is it?', config: { tools: [tool] } }
  const { models } = sdkAt(url)
  if (!streams) {
    const { text, functionCalls, candidates, usageMetadata } = await models.generateContent(request)
    return { text, functionCalls, reason: candidates?.[0]?.finishReason, usageMetadata, called: tool.called.length }
  }
  let text = ''
  let last: Awaited<ReturnType<typeof models.generateContent>> | undefined
  for await (const chunk of await models.generateContentStream(request)) {
    if (chunk.candidates?.[0]?.content?.role !== 'user') last = chunk
    text += chunk.text ?? ''
  }
  const { functionCalls, candidates, usageMetadata } = last ?? {}
  return { text, functionCalls, reason: candidates?.[0]?.finishReason, usageMetadata, called: tool.called.length }
}

/** Looks three things up, two of them at once, then answers. */
const research: Script = (_, number) =>
  [
    { text: 'Let me see. ', calls: [{ name: 'search', arguments: { query: 'größe' } }] },
    { calls: [1, 2].map((part) => ({ id: `c${part}`, name: 'search', arguments: { part } })) },
    { text: 'It is — after all — 42. 🎉' },
  ][number - 1] ?? { text: 'Nothing more.' }

describe.each([false, true])('the Google GenAI SDK with its automatic function calling (stream: %s)', (streams) => {
  it('gives the same answer by the same steps, and sends the provider the same bytes, as without Governor', async () => {
    const [direct, behind] = await Promise.all([startProvider(research), startProvider(research)])
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url, { upstreams: { gemini: { url: behind.url } } })
    const without = await run(direct.url, streams)
    expect(await run(url, streams)).toEqual(without)
    expect(without).toMatchObject({ called: 3, reason: 'STOP' })
    const bodies = ({ requests }: typeof direct) => requests.map(({ body }) => body.toString())
    expect(bodies(behind)).toEqual(bodies(direct))
  })

  it('counts each answer once, in one session', async () => {
    const { url, events } = await startBoth(research)
    await run(url, streams)
    const ends = events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
    expect(ends.map(({ iteration }) => iteration)).toEqual([1, 2, 3])
    expect(new Set(ends.slice(1).map(({ session }) => session)).size).toBe(1)
  })

  it('ends a run with the model’s answer before its own limit of 10 calls, which gives none', async () => {
    const alone = await startProvider(runawayGemini())
    onTestFinished(alone.close)
    const cut = await run(alone.url, streams)
    expect([cut.text ?? '', cut.functionCalls?.length]).toEqual(['', 1])
    const { url, provider } = await startBoth(runawayGemini(), { budget: { max_iterations: 9 } })
    expect(await run(url, streams)).toMatchObject({ text: 'This is what I found so far.', called: 9, reason: 'STOP' })
    expect(provider.requests).toHaveLength(10)
  })

  it('continues with the model’s next answer when its call is blocked', async () => {
    const { url, events } = await startBoth(({ body }) =>
      body.includes('[LOOP GUARD] Blocked')
        ? { text: 'Then I stop.' }
        : { calls: [{ name: 'search', arguments: { query: 'x' } }] },
    )
    expect(await run(url, streams)).toMatchObject({ text: 'Then I stop.', called: 6, reason: 'STOP' })
    expect(events).toContainEqual(expect.objectContaining({ kind: 'call_blocked' }))
  })
})

describe('a chat of the Google GenAI SDK', () => {
  it('keeps the answer that ended its run in its history, and goes on with the next message', async () => {
    const { url, provider } = await startBoth(
      (request, number) =>
        mayCall(request) && number !== 5 ? runawayGemini()(request, number) : { text: 'This is what I found so far.' },
      { budget: { max_iterations: 3 } },
    )
    const chat = sdkAt(url).chats.create({ model: 'gemini-2.5-flash', config: { tools: [searchTool()] } })
    let text = ''
    for await (const chunk of await chat.sendMessageStream({ message: 'What is it?' })) text += chunk.text ?? ''
    expect(text).toBe('This is what I found so far.')
    const next = await chat.sendMessage({ message: 'And that?' })
    expect(next.text).toBe('This is what I found so far.')
    // The SDK keeps a content for each chunk, and forgets the whole answer if one of them has no part.
    expect(provider.requests.at(-1)?.body.toString()).toContain('{"parts":[{"text":"far."}],"role":"model"}')
  })

  it('gets an error of Governor’s own as an error of the API', async () => {
    const { url, provider } = await startBoth(runawayGemini())
    await provider.close()
    const asked = sdkAt(url).models.generateContent({ model: 'm', contents: 'Go.' })
    await expect(asked).rejects.toMatchObject({ name: 'ApiError', status: 502 })
  })
})
