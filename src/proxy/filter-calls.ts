/**
 * Blocks tool calls in the model's response, for a run that still loops after a warning.
 *
 * Only the responses of such a run are read. Text goes to the client as it comes; calls are held until they are complete.
 * Blocked calls are removed. If no call is left, the model is asked again, with a text of Governor as the result of each
 * call, and its next answer continues the same response.
 */

import { fill } from '../core/budget/notice.ts'
import { blockText, fallbackText, NOT_EXECUTED } from '../core/loop/notice.ts'
import type { BlockDecision } from '../core/loop/observe.ts'
import { noteInjected } from '../core/session/transitions.ts'
import { type Limit, REASONS } from '../core/terminal.ts'
import type { BlockedMessage, BufferedCalls, ToolBan } from '../dialect/dialect.ts'
import { leaseFor } from '../http/buffer-budget.ts'
import { isEventStream } from '../http/headers.ts'
import { relay } from '../http/relay.ts'
import type { GovernorHeaders } from '../http/response.ts'
import type { Failure } from '../http/upstream.ts'
import { UpstreamFailed, type UpstreamResponse, withoutCompression } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import { openClientStream } from './answer/client-stream.ts'
import {
  bodyFilter,
  type FilteredResponse,
  type ResponseFilter,
  streamFilter,
} from './answer/held-response.ts'
import { replaceBy, savePartOfResults } from './answer/pending-results.ts'
import { type AnswerVariant, askForAnswer, endingOf } from './final-answer.ts'
import { type SpokenRequest, sendSpoken } from './forward.ts'
import { isUnsupported, placeFor } from './request-edits.ts'
import { mayBeUnsupported, type RequestVariant, sendModel } from './send-model.ts'
import type { Turn } from './turn.ts'
import { failRequest } from './turn.ts'

type Blocks = BlockDecision['blocked']

const NOTHING_BLOCKED: BlockDecision = { blocked: [], endsRun: false }
const NO_CALLS: ReadonlySet<number> = new Set()

/** How often the model is asked again, at most, for one response whose calls were all blocked. */
const MAX_REASKS = 2

/** What the steps of one filtered response share. */
interface Filtering extends FilteredResponse {
  /** The variant of the request that the provider accepted. */
  readonly variant: SpokenRequest
}

/** Sends the request and gives the client the response without blocked calls. */
export async function filterCalls(evaluated: Turn): Promise<void> {
  const { exchange, call, services } = evaluated
  const { dialect } = exchange.route
  if (!dialect) return
  const x = { ...evaluated, call: withoutCompression(call) }
  const fail = (failure: Failure) => failRequest(x, failure)
  try {
    const { variant, response, governorHeaders } = await sendSpoken(x)
    if (response.head.status !== 200) return relay(response, exchange.response, governorHeaders, fail)
    const lease = leaseFor(services.buffers, exchange.response)
    const client = openClientStream(exchange, governorHeaders)
    await judgeResponses({ x, dialect, lease, client, variant }, response)
  } catch (error) {
    if (exchange.isClientGone()) return
    // Without Governor the client would get the bytes that cannot be read here.
    if (!(error instanceof UpstreamFailed) || error.failure.code === 'upstream_undecodable') throw error
    fail(error.failure)
  }
}

/** Reads responses until one has calls that go to the client, or the run is over. */
async function judgeResponses(filtering: Filtering, first: UpstreamResponse): Promise<void> {
  const { x, client } = filtering
  const filter = isEventStream(first.head.headers) ? streamFilter(filtering, first) : bodyFilter(filtering)
  const rounds: BlockedMessage[] = []
  let buffered = await filter.take(first)
  for (;;) {
    const { blocked, endsRun } = buffered?.calls.length
      ? await x.handle.decideBlocks(buffered.calls)
      : NOTHING_BLOCKED
    const positions = new Set(blocked.flatMap((block, at) => (block ? [at] : [])))
    if (!buffered || positions.size === 0) {
      await replaceBy(x, rounds, buffered)
      return filter.release(NO_CALLS)
    }
    const { governorHeaders } = client
    client.governorHeaders = { ...governorHeaders, ...blockHeaders(blocked) }
    const isOver = endsRun || rounds.length === MAX_REASKS
    const round = { buffered, results: resultsFor(buffered, blocked) }
    if (!isOver && positions.size < buffered.calls.length) {
      noteBlocks(x, blocked)
      await savePartOfResults(x, rounds, round, positions)
      return filter.release(positions)
    }
    rounds.push(round)
    if (isOver) {
      noteBlocks(x, blocked)
      return endRun(filtering, filter, rounds, fallbackFor(blocked))
    }
    const next = await askAgain(filtering, filter, rounds)
    if (!next) {
      // Nothing of this response is blocked after all.
      client.governorHeaders = governorHeaders
      await replaceBy(x, rounds.slice(0, -1), buffered)
      return filter.release(NO_CALLS)
    }
    noteBlocks(x, blocked)
    buffered = next
  }
}

/** Returns Governor's results for the calls of a response, in order: why a call was blocked, or that it was not executed. */
function resultsFor({ calls }: BufferedCalls, blocked: Blocks): readonly string[] {
  return calls.map(({ name }, at) => {
    const block = blocked[at]
    return block ? blockText(name, block.count) : NOT_EXECUTED
  })
}

/** Returns the headers about a blocked call; about the last one if there are several. */
function blockHeaders(blocked: Blocks): GovernorHeaders {
  const block = blocked.findLast((found) => found !== undefined)
  if (!block) return {}
  return { 'x-governor-verdict': 'block', 'x-governor-loop': `${block.pattern};count=${block.count}` }
}

function noteBlocks({ exchange, handle, runState }: Turn, blocked: Blocks): void {
  if (!runState.thread.noticeSent) void handle.change(noteInjected)
  for (const block of blocked) {
    if (!block) continue
    const { pattern, tool } = block
    exchange.emit({ kind: 'call_blocked', pattern, tool, ...handle.names })
    exchange.noteVerdict('block', pattern)
  }
}

/** Returns the text for the client if the model has no answer. */
function fallbackFor(blocked: Blocks): string {
  const block = blocked.find((found) => found !== undefined)
  return fallbackText(block?.tool ?? '', block?.count ?? 0)
}

/** Returns variants that continue after blocks: with everything that the model said, then without fields that the API may not know. */
function continuations({ x, variant }: Filtering, rounds: readonly BlockedMessage[]): RequestVariant[] {
  const { sent } = x
  const textOf = (edits: readonly Edit[]) => edits.map(({ text }) => text).join('')
  const all = sent.continueAfterBlock(rounds)
  const bare = sent.continueAfterBlock(rounds, true)
  if (!all) return []
  const variants = bare && textOf(bare) !== textOf(all) ? [all, bare] : [all]
  return variants.map((edits) => ({ edits: [...(variant.edits ?? []), ...edits], features: [] }))
}

/**
 * Asks the model again, with Governor's texts as the results of its calls. Returns the calls of its next response;
 * `undefined` if no usable response comes: then the client can still get the one before.
 */
async function askAgain(
  filtering: Filtering,
  filter: ResponseFilter,
  rounds: readonly BlockedMessage[],
): Promise<BufferedCalls | undefined> {
  const { services, exchange } = filtering.x
  const next = await continueRun(filtering, filter, rounds).catch((error) => {
    if (exchange.isClientGone()) throw error
    return undefined
  })
  services.emit({ kind: 'asked_again', outcome: next ? 'answered' : 'failed' })
  return next
}

async function continueRun(
  filtering: Filtering,
  filter: ResponseFilter,
  rounds: readonly BlockedMessage[],
): Promise<BufferedCalls | undefined> {
  const [first, ...others] = continuations(filtering, rounds)
  if (!first) return undefined
  const { response } = await sendModel(filtering.x, first, (refused) =>
    mayBeUnsupported(refused.response.head) ? others.shift() : undefined,
  )
  if (response.head.status === 200) return filter.take(response)
  response.abort()
  return undefined
}

/** Ends a run that continues to loop: the model is asked for its answer, without tools. */
async function endRun(
  filtering: Filtering,
  filter: ResponseFilter,
  rounds: readonly BlockedMessage[],
  fallback: string,
): Promise<void> {
  const { x, dialect, client, lease } = filtering
  const { runState, policy } = x
  const limit: Limit = {
    meter: { name: 'iterations', used: runState.iteration, max: policy.enabled ? policy.run.iterations : 0 },
    reason: 'loop_guard',
  }
  x.exchange.noteVerdict('stop')
  client.governorHeaders = { ...client.governorHeaders, 'x-governor-verdict': 'stop' }
  const { governorHeaders } = client
  const made = { dialect, client, lease, isStop: true, fallback, rounds }
  const ending = endingOf({ ...x, governorHeaders }, limit, made)
  const begun = await filter.becomeAnswer(ending.isJson, ending.footer !== undefined)
  await askForAnswer(ending, lastVariants(filtering, rounds), begun)
}

/** Returns the variants that ask for the last answer, best first: after all responses, or without the last one. */
function lastVariants({ x, variant }: Filtering, rounds: readonly BlockedMessage[]): AnswerVariant[] {
  const { sent, policy, runState } = x
  const meter = { name: 'iterations', used: runState.iteration, max: policy.run.iterations } as const
  const notice = fill(policy.texts[REASONS.loop_guard.text], meter)
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
