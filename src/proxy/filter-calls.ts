/**
 * Blocks calls in the model's response that a guard does not let pass. Text goes to the client as it comes; calls are
 * held until they are complete, and blocked ones are removed. If no call is left, the model is asked again, with a text
 * of Governor as the result of each call, and its next answer continues the same response.
 */
import { fill } from '../core/budget/budget-notices.ts'
import type { ToolCall } from '../core/conversation.ts'
import { type Block, type Judgement, judgeCalls, NOTHING_BLOCKED } from '../core/guards.ts'
import { NOT_EXECUTED } from '../core/loop/loop-notices.ts'
import { changeThread } from '../core/session/transitions.ts'
import { REASONS } from '../core/terminal.ts'
import type { BlockedMessage, BufferedCalls } from '../dialect/dialect.ts'
import { leaseFor } from '../http/body.ts'
import { isSuccess } from '../http/upstream.ts'
import { isEventStream, type UpstreamResponse, withoutCompression } from '../http/upstream-response.ts'
import { beginAnswer, redirectAll, saveResults } from './answer/answer-response.ts'
import { type ClientStream, openClientStream } from './answer/client-stream.ts'
import { bodyFilter, type ResponseFilter, streamFilter } from './answer/held-response.ts'
import { emitFor, noteVerdict } from './begin-exchange.ts'
import { countFault } from './fault.ts'
import { type AnswerVariant, askForAnswer } from './final-answer.ts'
import { isUnsupported, placesFor, type RequestVariant, type SpokenRequest } from './request-edits.ts'
import { mayBeUnsupported, sendModel, sendSpoken } from './send-model.ts'
import { changeSession, relayResponse, type Turn, updateSession } from './turn.ts'

const NO_CALLS: ReadonlySet<number> = new Set()

/** How often the model is asked again, at most, for one response whose calls were all blocked. */
const MAX_REASKS = 2

/** What the steps of one filtered response share. */
interface Filtering {
  readonly x: Turn
  readonly client: ClientStream
  readonly filter: ResponseFilter
  /** The variant of the request that the provider accepted. */
  readonly variant: SpokenRequest
}

/** Sends the request and gives the client the response without blocked calls. @throws {UpstreamFailed} */
export async function filterCalls(turn: Turn): Promise<void> {
  const { exchange, call, services } = turn
  const x = { ...turn, call: withoutCompression(call) }
  const { variant, response } = await sendSpoken(x)
  if (!isSuccess(response.head)) return relayResponse(x, response)
  const lease = leaseFor(services.buffers, exchange.client)
  const client = openClientStream(exchange.client, x.governorHeaders)
  const filter = (await isEventStream(response))
    ? streamFilter(x, client, lease, response)
    : bodyFilter(x, client, lease)
  await judgeResponses({ x, client, filter, variant }, response)
}

/** Reads responses until one has calls that go to the client, or the run is over. */
async function judgeResponses(filtering: Filtering, first: UpstreamResponse): Promise<void> {
  const { x, client, filter } = filtering
  const rounds: BlockedMessage[] = []
  let buffered = await filter.take(first)
  for (;;) {
    const { blocked, endsRun } = buffered?.calls.length
      ? await judge(x, buffered.calls, rounds.length > 0)
      : NOTHING_BLOCKED
    const blocks = blocked.filter((block) => block !== undefined)
    const [firstBlock] = blocks
    if (!buffered || !firstBlock) {
      await redirectAll(x, rounds, buffered)
      return filter.release(NO_CALLS)
    }
    const { governorHeaders } = client
    const loop = blocks.at(-1)?.loop
    client.governorHeaders = {
      ...governorHeaders,
      'x-governor-verdict': 'block',
      ...(loop ? { 'x-governor-loop': `${loop.pattern};count=${loop.count}` } : {}),
    }
    const isOver = endsRun || rounds.length === MAX_REASKS
    const round = { buffered, results: blocked.map((block) => block?.text ?? NOT_EXECUTED) }
    if (!isOver && blocks.length < buffered.calls.length) {
      noteBlocks(x, blocks)
      const positions = new Set<number>()
      for (const [at, block] of blocked.entries()) if (block) positions.add(at)
      await saveResults(x, round, positions, rounds)
      return filter.release(positions)
    }
    rounds.push(round)
    if (isOver) {
      noteBlocks(x, blocks)
      return endRun(filtering, rounds, firstBlock)
    }
    const next = await askAgain(filtering, rounds)
    x.services.emit({ kind: 'asked_again', outcome: next ? 'answered' : 'failed' })
    if (!next) {
      // Nothing of this response is blocked after all.
      client.governorHeaders = governorHeaders
      await redirectAll(x, rounds.slice(0, -1), buffered)
      return filter.release(NO_CALLS)
    }
    noteBlocks(x, blocks)
    buffered = next
  }
}

/**
 * Returns which calls of a response are blocked; none if the store fails. `isAgain`: the model was asked again after a
 * block in this request.
 */
async function judge(x: Turn, calls: readonly ToolCall[], isAgain: boolean): Promise<Judgement> {
  const { services, request, runState, state } = x
  const judged = { request, runState, isAgain, now: services.now() }
  const judgement = await updateSession(x, NOTHING_BLOCKED, judgeCalls, calls, judged)
  for (const { guard, error } of judgement.faults) countFault(services.emit, error, guard)
  const block = judgement.blocked.find((one) => one !== undefined)
  if (block) state.decided = { ...state.decided, verdict: 'block', said: block.text }
  return judgement
}

function noteBlocks(x: Turn, blocks: readonly Block[]): void {
  const { exchange, names, runState } = x
  if (!runState.thread.noticeSent) void changeSession(x, changeThread, { noticeSent: true })
  for (const { guard, tool, loop } of blocks) {
    emitFor(exchange, { kind: 'call_blocked', pattern: loop?.pattern ?? guard, tool, ...names })
    noteVerdict(exchange, 'block', loop?.pattern)
  }
}

/**
 * Asks the model again, with Governor's texts as the results of its calls; then without fields that the API may not
 * know. Returns the calls of its next response; `undefined` if none comes: then the client can still get the one
 * before.
 */
async function askAgain(
  { x, filter, variant }: Filtering,
  rounds: readonly BlockedMessage[],
): Promise<BufferedCalls | undefined> {
  const { edits = [] } = variant
  try {
    const all = x.sent.continueAfterBlock(rounds)
    if (!all) return undefined
    const bare = x.sent.continueAfterBlock(rounds, true) ?? all
    const isSame = bare.length === all.length && bare.every(({ text }, at) => text === all[at]?.text)
    const first: RequestVariant = { edits: [...edits, ...all], features: [] }
    const other: RequestVariant = { edits: [...edits, ...bare], features: [] }
    const { response } = await sendModel(x, first, (refused) =>
      !isSame && refused.variant === first && mayBeUnsupported(refused.response.head) ? other : undefined,
    )
    if (isSuccess(response.head)) return await filter.take(response)
    response.abort()
    return undefined
  } catch (error) {
    if (x.exchange.client.isGone()) throw error
    return undefined
  }
}

/** Ends a run: the model is asked for its answer, without tools, after all responses or without the blocked ones. */
async function endRun(
  { x, client, filter, variant }: Filtering,
  rounds: readonly BlockedMessage[],
  { guard, fallback }: Block,
): Promise<void> {
  const { sent, runState, policy, services, exchange } = x
  const max = policy.enabled ? policy.run.iterations : 0
  const meter = { name: 'iterations', used: runState.iteration, max } as const
  noteVerdict(exchange, 'stop')
  client.governorHeaders = { ...client.governorHeaders, 'x-governor-verdict': 'stop' }
  const how = { isStop: true, fallback, rounds, hasFooter: services.policies.stop.hasFooter }
  const ended = { ...x, governorHeaders: client.governorHeaders }
  const answer = beginAnswer(ended, { meter, reason: guard }, client, how)
  await filter.become(answer)
  const notice = fill(policy.texts[REASONS[guard].text], meter)
  const last = rounds.at(-1)
  const results = last?.results.with(-1, `${last.results.at(-1)}\n\n${notice}`) ?? []
  const continued = last && sent.continueAfterBlock(rounds.with(-1, { ...last, results }))
  const variants: AnswerVariant[] = []
  const withoutTools = sent.banTools('no_tools')
  if (continued) {
    const after = [...variant.textEdits, ...continued]
    const edits = [...after, ...sent.banTools('choice_none')]
    if (sent.conversation.offersTools && !isUnsupported(x, 'tool_choice'))
      variants.push({ name: 'choice_none', edits, features: ['tool_choice'] })
    variants.push({ name: 'no_tools', edits: [...after, ...withoutTools], features: [] })
  }
  const [place] = placesFor(x, notice)
  const withoutBlocked = [...(place?.edits ?? []), ...withoutTools]
  variants.push({ name: 'no_tools+without_blocked', edits: withoutBlocked, features: [] })
  await askForAnswer(answer, variants)
}
