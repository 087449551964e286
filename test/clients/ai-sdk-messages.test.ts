import { createAnthropic } from '@ai-sdk/anthropic'
import { describe, expect, it, onTestFinished } from 'vitest'
import { askWithTools } from '../support/ai-sdk.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runawayMessages } from '../support/messages.ts'
import { type Script, startProvider } from '../support/provider.ts'

const THINKING = { type: 'thinking', thinking: 'Let me see.', signature: 'c2lnbmVk' }
const same = { name: 'search', arguments: { query: 'the same' } }
const research: Script = (_, number) =>
  number === 1
    ? { blocks: [THINKING], calls: [{ name: 'search', arguments: { query: 'it' } }, same] }
    : { text: 'It is 42. ' }

function run(baseURL: string, stream: boolean) {
  const anthropic = createAnthropic({ baseURL: `${baseURL}/v1`, apiKey: 'sk-test' })
  return askWithTools(anthropic('claude-test'), stream, {
    providerOptions: { anthropic: { thinking: { type: 'enabled' as const, budgetTokens: 1024 } } },
  })
}

describe.each([{ stream: false }, { stream: true }])('the ai package over Messages (stream: $stream)', ({ stream }) => {
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
    const { url } = await startBoth(runawayMessages(), { budget: { max_iterations: 3 } })
    expect(await run(url, stream)).toMatchObject({
      text: 'This is what I found so far.',
      steps: 4,
      finishReason: 'stop',
    })
  })

  it('continues with the model’s next answer when its calls are blocked', async () => {
    const { url, provider } = await startBoth(({ body }) =>
      body.includes('[LOOP GUARD] Blocked') ? { text: 'I give up.' } : { blocks: [THINKING], calls: [same] },
    )
    expect(await run(url, stream)).toMatchObject({ text: 'I give up.', steps: 7 })
    expect(provider.requests).toHaveLength(8)
  })
})
