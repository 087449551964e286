/**
 * Blocks calls in the model's response that a guard does not let pass.
 *
 * Only responses that may have such calls are read. Text goes to the client as it comes; calls are held until they are
 * complete. Blocked calls are removed. If no call is left, the model is asked again, with a text of Governor as the result
 * of each call, and its next answer continues the same response.
 */
import { fill } from '../core/budget/notice.ts'
import { type Block, type Judgement, NOTHING_BLOCKED } from '../core/guards.ts'
import { NOT_EXECUTED } from '../core/loop/notice.ts'
import { changeThread } from '../core/session/transitions.ts'
import { type CallGuardName, type Limit, REASONS } from '../core/terminal.ts'
import type { BlockedMessage, BufferedCalls, ToolBan } from '../dialect/dialect.ts'
import { leaseFor } from '../http/body.ts'
import { isEventStream } from '../http/headers.ts'
import { relay } from '../http/response.ts'
import type { Failure } from '../http/upstream.ts'
import { UpstreamFailed, type UpstreamResponse, withoutCompression } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import { openClientStream } from './answer/client-stream.ts'
import { bodyFilter, type FilteredResponse, type ResponseFilter, streamFilter } from './answer/held-response.ts'
import { replaceBy, savePartOfResults } from './answer/pending-results.ts'
import { type AnswerVariant, askForAnswer, endingOf } from './final-answer.ts'
import { type SpokenRequest, sendSpoken } from './forward.ts'
import { isUnsupported, placeFor } from './request-edits.ts'
import { mayBeUnsupported, type RequestVariant, sendModel } from './send-model.ts'
import { failRequest, type Turn } from './turn.ts'

const NO_CALLS: ReadonlySet<number> = new Set()

/** How often the model is asked again, at most, for one response whose calls were all blocked. */
const MAX_REASKS = 2

/** What the steps of one filtered response share. */
interface Filtering extends FilteredResponse {
  readonly filter: ResponseFilter
  /** The variant of the request that the provider accepted. */
  readonly variant: SpokenRequest
}

/** Sends the request and gives the client the response without blocked calls. */
export async function filterCalls(turn: Turn): Promise<void> {
  const { exchange, call, services } = turn
  const { dialect } = exchange.route
  if (!dialect) return
  const x = { ...turn, call: withoutCompression(call) }
  const fail = (failure: Failure) => failRequest(x, failure)
  try {
    const { variant, response, governorHeaders } = await sendSpoken(x)
    if (response.head.status !== 200) return relay(response, exchange.response, governorHeaders, fail)
    const lease = leaseFor(services.buffers, exchange.response)
    const filtered = { x, dialect, lease, client: openClientStream(exchange, governorHeaders) }
    const isStream = isEventStream(response.head.headers)
    const filter = isStream ? streamFilter(filtered, response) : bodyFilter(filtered)
    await judgeResponses({ ...filtered, filter, variant }, response)
  } catch (error) {
    if (exchange.isClientGone()) return
    // Without Governor the client would get the bytes that cannot be read here.
    if (!(error instanceof UpstreamFailed) || error.failure.code === 'upstream_undecodable') throw error
    fail(error.failure)
  }
}

/** Reads responses until one has calls that go to the client, or the run is over. */
async function judgeResponses(filtering: Filtering, first: UpstreamResponse): Promise<void> {
  const { x, client, filter } = filtering
  const rounds: BlockedMessage[] = []
  let buffered = await filter.take(first)
  for (;;) {
    const { blocked, endsRun }: Judgement = buffered?.calls.length
      ? await x.handle.judge(buffered.calls)
      : NOTHING_BLOCKED
    const blocks = blocked.filter((block) => block !== undefined)
    const [firstBlock] = blocks
    if (!buffered || !firstBlock) {
      await replaceBy(x, rounds, buffered)
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
      const positions = new Set(blocked.flatMap((block, at) => (block ? [at] : [])))
      await savePartOfResults(x, rounds, round, positions)
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
      await replaceBy(x, rounds.slice(0, -1), buffered)
      return filter.release(NO_CALLS)
    }
    noteBlocks(x, blocks)
    buffered = next
  }
}

function noteBlocks({ exchange, handle, runState }: Turn, blocks: readonly Block[]): void {
  if (!runState.thread.noticeSent) void handle.change(changeThread, { noticeSent: true })
  for (const { guard, tool, loop } of blocks) {
    exchange.emit({ kind: 'call_blocked', pattern: loop?.pattern ?? guard, tool, ...handle.names })
    exchange.noteVerdict('block', loop?.pattern)
  }
}

/**
 * Asks the model again, with Governor's texts as the results of its calls: after everything that it said, then without
 * fields that the API may not know. Returns the calls of its next response; `undefined` if no usable response comes: then
 * the client can still get the one before.
 */
async function askAgain(
  { x, filter, variant }: Filtering,
  rounds: readonly BlockedMessage[],
): Promise<BufferedCalls | undefined> {
  const textOf = (edits: readonly Edit[]) => edits.map(({ text }) => text).join('')
  const variantOf = (edits: readonly Edit[]): RequestVariant => ({
    edits: [...(variant.edits ?? []), ...edits],
    features: [],
  })
  try {
    const all = x.sent.continueAfterBlock(rounds)
    if (!all) return undefined
    const bare = x.sent.continueAfterBlock(rounds, true)
    const others = bare && textOf(bare) !== textOf(all) ? [variantOf(bare)] : []
    const { response } = await sendModel(x, variantOf(all), (refused) =>
      mayBeUnsupported(refused.response.head) ? others.shift() : undefined,
    )
    if (response.head.status === 200) return await filter.take(response)
    response.abort()
    return undefined
  } catch (error) {
    if (x.exchange.isClientGone()) throw error
    return undefined
  }
}

/** Ends a run that goes on with blocked calls: the model is asked for its answer, without tools. */
async function endRun(
  filtering: Filtering,
  rounds: readonly BlockedMessage[],
  { guard, fallback }: Block,
): Promise<void> {
  const { x, dialect, client, lease, filter } = filtering
  const { runState, policy } = x
  const limit: Limit = {
    meter: { name: 'iterations', used: runState.iteration, max: policy.enabled ? policy.run.iterations : 0 },
    reason: guard,
  }
  x.exchange.noteVerdict('stop')
  client.governorHeaders = { ...client.governorHeaders, 'x-governor-verdict': 'stop' }
  const { governorHeaders } = client
  const made = { dialect, client, lease, isStop: true, fallback, rounds }
  const ending = endingOf({ ...x, governorHeaders }, limit, made)
  const begun = await filter.becomeAnswer(ending.isJson, ending.footer !== undefined)
  await askForAnswer(ending, lastVariants(filtering, rounds, guard), begun)
}

/** Returns the variants that ask for the last answer, best first: after all responses, or without the last. */
function lastVariants(
  { x, variant }: Filtering,
  rounds: readonly BlockedMessage[],
  guard: CallGuardName,
): AnswerVariant[] {
  const { sent, policy, runState } = x
  const meter = { name: 'iterations', used: runState.iteration, max: policy.run.iterations } as const
  const notice = fill(policy.texts[REASONS[guard].text], meter)
  const last = rounds.at(-1)
  const lastRound = last && {
    ...last,
    results: [...last.results.slice(0, -1), `${last.results.at(-1) ?? ''}\n\n${notice}`],
  }
  const continued = lastRound && sent.continueAfterBlock([...rounds.slice(0, -1), lastRound])
  const banned = (ban: ToolBan, edits: readonly Edit[], name: string = ban): AnswerVariant => ({
    edits: [...edits, ...sent.banTools(ban)],
    features: ban === 'choice_none' ? ['tool_choice'] : [],
    name,
  })
  const mayChoose = sent.conversation.offersTools && !isUnsupported(x, 'tool_choice')
  const after = continued && [...variant.textEdits, ...continued]
  return [
    ...(after && mayChoose ? [banned('choice_none', after)] : []),
    ...(after ? [banned('no_tools', after)] : []),
    banned('no_tools', placeFor(x, notice)?.edits ?? [], 'no_tools+without_blocked'),
  ]
}
