import { describe, expect, it, onTestFinished } from 'vitest'
import { askWithTools } from '../support/ai-sdk.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runawayMessages } from '../support/messages.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { readsBlock } from '../support/scripts.ts'
import { AI_SDKS, type AiSdk } from '../support/versions.ts'

const SAME = { name: 'search', arguments: { query: 'the same' } }
const CALLS = [{ name: 'search', arguments: { query: 'it' } }, SAME]
const THINKING = { blocks: [{ type: 'thinking', thinking: 'Let me see.', signature: 'c2lnbmVk' }] }
const REASONING = { reasoning: 'x' }

function askChat(sdk: AiSdk, url: string, stream: boolean) {
  const settings = { name: 'test', baseURL: `${url}/v1`, apiKey: 'sk-test', includeUsage: true }
  return askWithTools(sdk, sdk.createOpenAICompatible(settings)('gpt-test'), stream)
}

function askMessages(sdk: AiSdk, url: string, stream: boolean) {
  const anthropic = sdk.createAnthropic({ baseURL: `${url}/v1`, apiKey: 'sk-test' })
  return askWithTools(sdk, anthropic('claude-test'), stream, {
    maxOutputTokens: 4_096,
    providerOptions: { anthropic: { thinking: { type: 'enabled' as const, budgetTokens: 1024 } } },
  })
}

const askResponses = (store: boolean) => (sdk: AiSdk, url: string, stream: boolean) => {
  const openai = sdk.createOpenAI({ baseURL: `${url}/v1`, apiKey: 'sk-test' })
  return askWithTools(sdk, openai('gpt-5'), stream, {
    providerOptions: { openai: { store, include: ['reasoning.encrypted_content' as const] } },
  })
}

const CASES = [
  // One message holds both texts, as paragraphs.
  { api: 'Chat Completions', ask: askChat, thought: {}, endless: runaway, between: '\n\n' },
  { api: 'Messages', ask: askMessages, thought: THINKING, endless: runawayMessages, between: '' },
  { api: 'Responses', ask: askResponses(false), thought: REASONING, endless: runaway, between: '' },
  { api: 'Responses that are stored', ask: askResponses(true), thought: REASONING, endless: runaway, between: '' },
].flatMap((api, of) =>
  AI_SDKS.flatMap((sdk, version) =>
    [false, true].map((stream) => {
      // What a blocked answer says before its calls: each API and each SDK has both, whole and streamed.
      const text = stream === ((of + version) % 2 === 0) ? 'Once more. ' : ''
      return { ...api, sdk, name: sdk.name, stream, text }
    }),
  ),
)

describe.each(CASES)('$name over $api (stream: $stream)', ({ sdk, ask, thought, endless, between, stream, text }) => {
  const research: Script = (_, number) => (number === 1 ? { ...thought, calls: CALLS } : { text: 'It is 42. ' })

  it('gives the same result as without Governor, and sends the provider the same bytes', async () => {
    const direct = await startProvider(research)
    const behind = await startProvider(research)
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url)
    const without = await ask(sdk, direct.url, stream)
    expect(await ask(sdk, url, stream)).toEqual(without)
    expect(without).toMatchObject({ text: 'It is 42. ', steps: 2 })
    expect(behind.requests.map(({ body }) => body.toString())).toEqual(
      direct.requests.map(({ body }) => body.toString()),
    )
  })

  it('gets an answer with a known finish reason when its run is stopped', async () => {
    const { url } = await startBoth(endless(), { budget: { max_iterations: 3 } })
    expect(await ask(sdk, url, stream)).toMatchObject({
      text: 'This is what I found so far.',
      steps: 4,
      finishReason: 'stop',
    })
  })

  it(`continues with the model’s next answer when its calls are blocked after the text "${text}"`, async () => {
    const { url, provider } = await startBoth((request) =>
      readsBlock(request) ? { text: 'I give up.' } : { ...thought, calls: [SAME], ...(text === '' ? {} : { text }) },
    )
    expect(await ask(sdk, url, stream)).toMatchObject({ text: `${text}${text && between}I give up.`, steps: 7 })
    expect(provider.requests).toHaveLength(8)
  })
})
