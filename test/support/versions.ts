/**
 * The packages that agents use, each in the versions that tests run side by side. An alias in `package.json` holds the
 * newer version. Its values have the types of the older one: a test is written once, and fails if the newer one differs.
 */
import { createAnthropic } from '@ai-sdk/anthropic'
import { createAnthropic as createAnthropic4 } from '@ai-sdk/anthropic-4'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAI as createOpenAI4 } from '@ai-sdk/openai-4'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { createOpenAICompatible as createOpenAICompatible3 } from '@ai-sdk/openai-compatible-3'
import * as agents from '@openai/agents'
import * as agents20 from '@openai/agents-0.20'
import * as ai from 'ai'
import * as ai7 from 'ai-7'
import OpenAI from 'openai'
import OpenAI7 from 'openai-7'

/** Returns a newer version's value as one of the older version's type. */
const asOlder = <T>(newer: unknown) => newer as T

/** The client of OpenAI. */
export const OPENAI_CLIENTS: readonly { readonly name: string; readonly OpenAI: typeof OpenAI }[] = [
  { name: 'openai 6', OpenAI },
  { name: 'openai 7', OpenAI: asOlder<typeof OpenAI>(OpenAI7) },
]

/** The AI SDK with the provider packages of its generation. */
export interface AiSdk {
  readonly name: string
  readonly ai: typeof ai
  readonly createAnthropic: typeof createAnthropic
  readonly createOpenAI: typeof createOpenAI
  readonly createOpenAICompatible: typeof createOpenAICompatible
}

/** Both generations of the AI SDK. */
export const AI_SDKS: readonly AiSdk[] = [
  { name: 'ai 6', ai, createAnthropic, createOpenAI, createOpenAICompatible },
  {
    name: 'ai 7',
    ai: asOlder(ai7),
    createAnthropic: asOlder(createAnthropic4),
    createOpenAI: asOlder(createOpenAI4),
    createOpenAICompatible: asOlder(createOpenAICompatible3),
  },
]

/** OpenAI Agents with the client that each version depends on. */
export interface AgentsSdk {
  readonly name: string
  readonly agents: typeof agents
  readonly OpenAI: typeof OpenAI
}

/** Both versions of OpenAI Agents, which send nothing about their runs to OpenAI. */
export const AGENTS_SDKS: readonly AgentsSdk[] = [
  { name: 'OpenAI Agents 0.14', agents, OpenAI },
  { name: 'OpenAI Agents 0.20', agents: asOlder(agents20), OpenAI: asOlder(OpenAI7) },
]
for (const sdk of AGENTS_SDKS) sdk.agents.setTracingDisabled(true)
