/** Prices that are still being loaded when the first answer comes. */
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { listed } from '../support/admin.ts'
import { callModel, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { type ChatMessage, completion, type ScriptedCall } from '../support/provider.ts'

const USAGE = { prompt_tokens: 400_000, completion_tokens: 0, total_tokens: 400_000 }
const CALLS: Readonly<Record<string, readonly ScriptedCall[]>> = {
  'with an id': [{ name: 'search', arguments: { query: 'a' } }],
  'without an id': [{ id: '', name: 'search', arguments: { query: 'a' } }],
}

/** A Governor that gets the prices when `open` is called. */
async function startUnpriced(calls: readonly ScriptedCall[]) {
  let open = () => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  vi.doMock('@pydantic/genai-prices', async (original) => {
    await opened
    return original()
  })
  onTestFinished(() => {
    open()
    vi.doUnmock('@pydantic/genai-prices')
  })
  const running = await startBoth(({ json }, number) => ({
    body: { ...completion(json, number > 1 ? { text: 'done' } : { calls }, number), usage: USAGE },
  }))
  return { ...running, open }
}

const CASES = Object.keys(CALLS).flatMap((call) =>
  ['before the second request', 'after the second request'].map((when) => ({ call, when })),
)

describe('prices that come after the first answer', () => {
  it.each(CASES.filter(({ call, when }) => call === 'with an id' || when.startsWith('before')))(
    'price it in a session without an id, whose call is $call, if they come $when',
    async ({ call, when }) => {
      const { url, until, events, open } = await startUnpriced(CALLS[call] ?? [])
      const options = { body: { model: 'gpt-4o' } }
      const { message } = await callModel(url, START, options)
      await until(({ kind }) => kind === 'answered')
      const priced = (count: number) => () =>
        events.filter((one) => one.kind === 'answered' && one.usage.cost !== undefined).length >= count
      if (when.startsWith('before')) {
        open()
        await until(priced(1))
      }
      const result: ChatMessage = { role: 'tool', tool_call_id: message.tool_calls?.[0]?.id ?? '', content: 'found' }
      await callModel(url, [...START, message, result], options)
      open()
      await until(priced(2))
      await expect.poll(async () => (await listed(url))[0]?.cost_usd).toBeCloseTo(2)
    },
  )
})
