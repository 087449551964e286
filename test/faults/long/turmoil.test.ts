/** Agents behind a balancer while replicas and Redis are killed, frozen and started again, one after the other. */
import { once } from 'node:events'
import fc from 'fast-check'
import OpenAI from 'openai'
import { expect, it, onTestFinished, vi } from 'vitest'
import { startBalancer } from '../../support/balancer.ts'
import { type Process, startProcess } from '../../support/process.ts'
import { describeWith } from '../../support/programs.ts'
import { runaway, startProvider } from '../../support/provider.ts'
import { freePort, type Redis, startRedis } from '../../support/redis.ts'

const AGENTS = 32
const RUNS = 3
const BUDGET = 12

/** A replica on a port of its own, where it can be started again. */
interface Replica {
  readonly url: string
  process: Process
  start(): Promise<void>
}

async function startReplica(upstream: string, redis: Redis): Promise<Replica> {
  const port = await freePort()
  const config = {
    server: { port },
    store: 'redis',
    redis: { url: redis.url, timeout: '300ms' },
    budget: { max_iterations: BUDGET },
    log: { level: 'info' },
  }
  const start = () => startProcess(upstream, config)
  const replica: Replica = {
    url: `http://127.0.0.1:${port}`,
    process: await start(),
    async start() {
      replica.process = await start()
    },
  }
  return replica
}

type Fault = (replicas: readonly Replica[], redis: Redis) => Promise<void>

/** How long something stays gone or frozen. */
const moment = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds))

const endReplica =
  (at: number, signal: 'SIGKILL' | 'SIGTERM'): Fault =>
  async (replicas) => {
    const replica = replicas[at]
    if (!replica) return
    const { child } = replica.process
    const exited = once(child, 'exit')
    child.kill(signal)
    expect(await exited).toEqual(signal === 'SIGTERM' ? [0, null] : [null, signal])
    await replica.start()
  }

const freezeReplica =
  (at: number, milliseconds: number): Fault =>
  async (replicas) => {
    const child = replicas[at]?.process.child
    child?.kill('SIGSTOP')
    await moment(milliseconds)
    child?.kill('SIGCONT')
  }

const freezeRedis =
  (milliseconds: number): Fault =>
  async (_, redis) => {
    redis.freeze()
    await moment(milliseconds)
    redis.thaw()
  }

const killRedis =
  (milliseconds: number): Fault =>
  async (_, redis) => {
    await redis.kill()
    await moment(milliseconds)
    await redis.restart()
  }

const AT = fc.nat({ max: 3 })
const TIME = fc.integer({ min: 100, max: 3_000 })
const FAULT = fc.oneof(
  AT.map((at) => endReplica(at, 'SIGKILL')),
  AT.map((at) => endReplica(at, 'SIGTERM')),
  fc.tuple(AT, TIME).map(([at, time]) => freezeReplica(at, time)),
  TIME.map(freezeRedis),
  TIME.map(killRedis),
)

type Message = OpenAI.ChatCompletionMessageParam

const TOOLS: OpenAI.ChatCompletionTool[] = [
  { type: 'function', function: { name: 'search', parameters: { type: 'object', properties: {} } } },
]

/** One model call. The SDK sends it again where it failed before its answer began, and the agent where that broke off. */
async function callModel(client: OpenAI, messages: Message[], stream: boolean) {
  const body = { model: 'gpt-test', messages, tools: TOOLS }
  let problem: unknown
  for (let attempt = 0; attempt < 50; attempt++) {
    try {
      const answer = stream
        ? await client.chat.completions.stream(body).finalChatCompletion()
        : await client.chat.completions.create(body)
      const message = answer.choices[0]?.message
      if (message) return message
    } catch (error) {
      problem = error
    }
  }
  throw problem
}

/** One run: how many calls it was given, and whether it was still over when its last answer was asked for again. */
interface Ended {
  readonly steps: number
  readonly isOver: boolean
}

/** Runs an agent, run after run. */
async function runAgent(url: string, number: number) {
  const client = new OpenAI({
    baseURL: `${url}/v1`,
    apiKey: 'sk-test',
    maxRetries: 20,
    timeout: 20_000,
    defaultHeaders: number % 2 === 0 ? { 'x-governor-session': `agent ${number}` } : {},
  })
  const runs: Ended[] = []
  const messages: Message[] = [{ role: 'system', content: `You are agent ${number}.` }]
  for (let run = 0; run < RUNS; run++) {
    messages.push({ role: 'user', content: `Task ${run} of agent ${number}.` })
    for (let steps = 0; ; steps++) {
      const stream = (number + steps) % 3 === 0
      const { content, tool_calls: calls } = await callModel(client, messages, stream)
      if (!calls?.length) {
        const again = await callModel(client, messages, stream)
        runs.push({ steps, isOver: !again.tool_calls?.length })
        messages.push({ role: 'assistant', content })
        break
      }
      messages.push({ role: 'assistant', content, tool_calls: calls })
      for (const { id } of calls) messages.push({ role: 'tool', tool_call_id: id, content: `result of ${id}` })
    }
  }
  return runs
}

describeWith('redis-server', 'four replicas on one Redis', () => {
  describeWith('nginx', 'behind nginx', () => {
    // The words of the last answer may differ: a replica that Redis is away from knows that a run is over, and not its answer.
    it('give every agent its whole budget and no call more, whatever is killed, frozen and started again', async () => {
      const provider = await startProvider(runaway())
      onTestFinished(() => provider.close())
      const redis = await startRedis()
      const replicas = await Promise.all(Array.from({ length: 4 }, () => startReplica(provider.url, redis)))
      const url = await startBalancer(replicas.map((replica) => replica.url))
      let isOver = false
      const agents = Promise.all(Array.from({ length: AGENTS }, (_, at) => runAgent(url, at))).finally(() => {
        isOver = true
      })
      agents.catch(() => undefined)
      const seed = Number(process.env['FAULTS_SEED'] ?? Date.now() % 1_000_000)
      let faults = 0
      for (const fault of fc.sample(FAULT, { seed, numRuns: 1_000 })) {
        if (isOver) break
        await fault(replicas, redis)
        faults++
      }
      const runs = (await agents).flat()
      process.stderr.write(
        `FAULTS_SEED=${seed}: ${faults} faults, ${provider.requests.length} requests to the provider\n`,
      )
      expect(faults).toBeGreaterThan(0)
      expect(runs).toEqual(Array(AGENTS * RUNS).fill({ steps: BUDGET, isOver: true }))
      await vi.waitFor(async () => {
        for (const replica of replicas) {
          const ready = await fetch(`${replica.url}/ready`)
          expect(await ready.json()).toMatchObject({ status: 'ready', store: { status: 'ok' } })
        }
      }, 30_000)
    })
  })
})
