/** Every way of holding a conversation, with an agent that runs away in it. */
import { runAgent, START } from './agent.ts'
import { ASKED, runawayMessages, runMessagesAgent } from './messages.ts'
import { runaway, type Script } from './provider.ts'
import { runResponses } from './responses-agent.ts'

interface Told {
  readonly headers: Headers
  readonly governor: Record<string, unknown> | undefined
}

/** One way of holding a conversation. */
export interface Way {
  readonly way: string
  readonly script: Script
  run(url: string, stream: boolean): Promise<readonly Told[]>
}

const responses =
  (stateful: boolean, body: Record<string, unknown>) =>
  async (url: string, stream: boolean): Promise<readonly Told[]> => {
    const { steps } = await runResponses(url, 'Go.', { stateful, stream, body })
    return steps.map(({ headers, response }) => ({
      headers,
      governor: response['governor'] as Record<string, unknown> | undefined,
    }))
  }

/** Every way of holding a conversation; the scripted model takes 110 tokens for each answer. */
export const WAYS: readonly Way[] = [
  {
    way: 'chat',
    script: runaway(),
    run: async (url, stream) => (await runAgent(url, START, { stream })).steps,
  },
  {
    way: 'messages',
    script: runawayMessages(),
    run: async (url, stream) => (await runMessagesAgent(url, ASKED, { stream })).steps,
  },
  { way: 'responses, forgotten', script: runaway(), run: responses(false, { store: false }) },
  { way: 'responses, kept but sent again', script: runaway(), run: responses(false, { store: true }) },
  { way: 'responses, kept', script: runaway(), run: responses(true, {}) },
]
