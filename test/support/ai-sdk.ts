/** An agent made with the `ai` package, for any provider package. */
import type { generateText, LanguageModel } from 'ai'
import { expect } from 'vitest'
import type { AiSdk } from './versions.ts'

type Settings = Parameters<typeof generateText>[0]

/** Asks with one tool for at most 30 steps; `more` are settings of the provider's. */
export async function askWithTools(
  { ai: { generateText, jsonSchema, stepCountIs, streamText, tool } }: AiSdk,
  model: LanguageModel,
  stream: boolean,
  more: Pick<Settings, 'providerOptions' | 'maxOutputTokens'> = {},
) {
  const settings = {
    model,
    ...more,
    prompt: 'What is it?',
    maxRetries: 0,
    stopWhen: stepCountIs(30),
    tools: {
      search: tool({
        description: 'Search',
        inputSchema: jsonSchema<{ query: string }>({
          type: 'object',
          properties: { query: { type: 'string' } },
        }),
        execute: ({ query }) => `found all about ${query}`,
      }),
    },
  }
  if (!stream) {
    const { text, steps, finishReason, totalUsage } = await generateText(settings)
    return { text, steps: steps.length, finishReason, tokens: totalUsage.totalTokens }
  }
  const errors: unknown[] = []
  const result = streamText({ ...settings, onError: ({ error }) => void errors.push(error) })
  await result.consumeStream()
  expect(errors).toEqual([])
  const [text, steps, finishReason, usage] = await Promise.all([
    result.text,
    result.steps,
    result.finishReason,
    result.totalUsage,
  ])
  return { text, steps: steps.length, finishReason, tokens: usage.totalTokens }
}
