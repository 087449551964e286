/** Replicas on one Redis that are killed in the middle of streams, with clients that retry on another replica. */
import { expect, it, vi } from 'vitest'
import { afterStep, type CallOptions, callModel, type Step } from '../support/agent.ts'
import { type Process, startProcess } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import type { ChatMessage } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { startHoldingProvider } from './holding-provider.ts'

const AGENTS = 60
/** Milliseconds that only a hang takes. */
const HANG = 300_000
const BUDGET = 3
/** Tokens of one answer. */
const PER_ANSWER = 110

/** Calls one replica after the other until there is a whole answer; counts the calls that failed. */
async function callAny(urls: readonly string[], messages: readonly ChatMessage[], options: CallOptions) {
  for (let failures = 0; failures < 20; failures++) {
    try {
      const step = await callModel(urls[failures % urls.length] ?? '', messages, { ...options, stream: true })
      if (step.status === 200) return { step, failures }
    } catch {}
  }
  throw new Error('no replica gave a whole answer')
}

interface Listed {
  readonly sessions: readonly { readonly id: string }[]
  readonly next: string | null
}

/** Returns all sessions, as the API of a replica shows them in its list. */
async function listAll({ url }: Process): Promise<Record<string, unknown>[]> {
  const found: Record<string, unknown>[] = []
  for (let cursor: string | null = ''; cursor !== null; ) {
    const more = cursor === '' ? '' : `&cursor=${encodeURIComponent(cursor)}`
    const page = (await (await fetch(`${url}/governor/sessions?limit=100${more}`)).json()) as Listed
    found.push(...page.sessions)
    cursor = page.next
  }
  return found
}

describeWith('redis-server', 'two replicas on one Redis', () => {
  it.each(['by their names', 'by how they began'])(
    'with many streams under way, in sessions known %s: when one is killed, each client gets a whole answer from the other, and nothing is counted twice',
    async (how) => {
      const provider = await startHoldingProvider()
      const redis = await startRedis()
      const config = {
        store: 'redis',
        redis: { url: redis.url, timeout: '5s' },
        budget: { max_iterations: BUDGET },
      }
      const start = () => startProcess(provider.url, config)
      const [first, second] = await Promise.all([start(), start()])
      const agents = Array.from({ length: AGENTS }, (_, at) => ({
        options: how === 'by their names' ? { headers: { 'x-governor-session': `agent ${at}` } } : {},
        messages: [{ role: 'user', content: `Task ${at}: find out everything.` }] as ChatMessage[],
      }))
      const step = async (urlsOf: (at: number) => readonly string[]) =>
        Promise.all(agents.map(({ messages, options }, at) => callAny(urlsOf(at), messages, options)))
      const continueWith = (steps: readonly { readonly step: Step }[]) => {
        for (const [at, agent] of agents.entries()) agent.messages = afterStep(agent.messages, steps[at]?.step as Step)
      }
      const iterationsOf = (steps: readonly { readonly step: Step }[]) =>
        new Set(steps.map(({ step }) => step.headers.get('x-governor-iteration')))
      const both = (at: number) => (at % 2 === 0 ? [first.url, second.url] : [second.url, first.url])
      const begun = await step(both)
      expect(iterationsOf(begun)).toEqual(new Set(['1/3']))
      continueWith(begun)

      provider.hold()
      const running = step(both)
      await vi.waitFor(() => expect(provider.held()).toBe(AGENTS), 30_000)
      first.child.kill('SIGKILL')
      // Those of the killed replica ask again, beside the streams that its end has left at the provider.
      await vi.waitFor(() => expect(provider.held()).toBe(AGENTS + AGENTS / 2), 30_000)
      provider.release()
      const retried = await running
      expect(retried.filter(({ failures }) => failures > 0)).toHaveLength(AGENTS / 2)
      expect(iterationsOf(retried)).toEqual(new Set(['2/3']))
      continueWith(retried)

      const third = await start()
      const others = (at: number) => (at % 2 === 0 ? [third.url, second.url] : [second.url, third.url])
      const last = await step(others)
      expect(iterationsOf(last)).toEqual(new Set(['3/3']))
      continueWith(last)
      const stopped = await step(others)
      for (const { step } of stopped)
        expect(step.governor).toMatchObject({ terminal_reason: 'max_iterations', budget_used: BUDGET })
      const again = await step((at) => others(at).toReversed())
      expect(again.map(({ step }) => step.message)).toEqual(stopped.map(({ step }) => step.message))
      await vi.waitFor(async () => {
        const sessions = await listAll(second)
        expect(sessions).toHaveLength(AGENTS)
        for (const session of sessions)
          expect(session).toMatchObject({
            state: 'stopped',
            iteration: BUDGET,
            total_iterations: BUDGET,
            tool_calls: BUDGET,
            // Each step once, and the last answer.
            tokens: (BUDGET + 1) * PER_ANSWER,
          })
      }, 20_000)
    },
    HANG,
  )
})
