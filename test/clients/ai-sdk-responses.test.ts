import { createOpenAI } from '@ai-sdk/openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { askWithTools } from '../support/ai-sdk.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { readsBlock } from '../support/scripts.ts'

const same = { name: 'search', arguments: { query: 'the same' } }
const research: Script = (_, number) =>
  number === 1
    ? { reasoning: 'x', calls: [{ name: 'search', arguments: { query: 'it' } }, same] }
    : { text: 'It is 42. ' }

function run(baseURL: string, stream: boolean, store: boolean) {
  const openai = createOpenAI({ baseURL: `${baseURL}/v1`, apiKey: 'sk-test' })
  return askWithTools(openai('gpt-5'), stream, {
    providerOptions: { openai: { store, include: ['reasoning.encrypted_content' as const] } },
  })
}

describe.each([
  { stream: false, store: false },
  { stream: true, store: false },
  { stream: false, store: true },
  { stream: true, store: true },
])('the ai package over Responses (stream: $stream, store: $store)', ({ stream, store }) => {
  it('gives the same result as without Governor, and sends the provider the same bytes', async () => {
    const direct = await startProvider(research)
    const behind = await startProvider(research)
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url)
    const without = await run(direct.url, stream, store)
    expect(await run(url, stream, store)).toEqual(without)
    expect(without).toMatchObject({ text: 'It is 42. ', steps: 2 })
    expect(behind.requests.map(({ body }) => body.toString())).toEqual(
      direct.requests.map(({ body }) => body.toString()),
    )
  })

  it('gets an answer with a known finish reason when its run is stopped', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
    expect(await run(url, stream, store)).toMatchObject({
      text: 'This is what I found so far.',
      steps: 4,
      finishReason: 'stop',
    })
  })

  it.each([undefined, 'Once more. '])(
    'continues with the model’s next answer when its calls are blocked after the text %s',
    async (text) => {
      const { url, provider } = await startBoth((request) =>
        readsBlock(request)
          ? { text: 'I give up.' }
          : { reasoning: 'x', calls: [same], ...(text === undefined ? {} : { text }) },
      )
      expect(await run(url, stream, store)).toMatchObject({ text: `${text ?? ''}I give up.`, steps: 7 })
      expect(provider.requests).toHaveLength(8)
    },
  )
})
