import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { describe, expect, it, onTestFinished } from 'vitest'
import { askWithTools } from '../support/ai-sdk.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'

const research: Script = (_, number) =>
  number === 1 ? { calls: [{ name: 'search', arguments: { query: 'it' } }] } : { text: 'It is 42. ' }

function run(baseURL: string, stream: boolean) {
  const provider = createOpenAICompatible({
    name: 'test',
    baseURL: `${baseURL}/v1`,
    apiKey: 'sk-test',
    includeUsage: true,
  })
  return askWithTools(provider('gpt-test'), stream)
}

describe.each([{ stream: false }, { stream: true }])('the ai package (stream: $stream)', ({ stream }) => {
  it('gives the same result as without Governor, and sends the provider the same bytes', async () => {
    const direct = await startProvider(research)
    const behind = await startProvider(research)
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url)
    const without = await run(direct.url, stream)
    expect(await run(url, stream)).toEqual(without)
    expect(without).toMatchObject({ text: 'It is 42. ', steps: 2 })
    expect(behind.requests.map(({ body }) => body.toString())).toEqual(
      direct.requests.map(({ body }) => body.toString()),
    )
  })

  it('gets an answer with a known finish reason when its run is stopped', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
    expect(await run(url, stream)).toMatchObject({
      text: 'This is what I found so far.',
      steps: 4,
      finishReason: 'stop',
    })
  })
})
