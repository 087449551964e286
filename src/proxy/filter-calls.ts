/**
 * Blocks calls in the model's response that a guard does not let pass. Text goes to the client as it comes; calls are
 * held until they are complete, and blocked ones are removed. If no call is left, the model is asked again, with a text
 * of Governor as the result of each call, and its next answer continues the same response. No blocked call reaches the
 * client: where nothing else comes, the run ends.
 */
import { fill } from '../core/budget/budget-notices.ts'
import type { ToolCall } from '../core/conversation/conversation.ts'
import { distinctIds } from '../core/conversation/transcript.ts'
import {
  type Block,
  endsIfRefusedAgain,
  type Judgement,
  judgeCalls,
  mayBlockLoop,
  NOT_EXECUTED,
  NOTHING_BLOCKED,
} from '../core/guards.ts'
import { changeThread, withoutRelayed } from '../core/session/transitions.ts'
import { matchesAny } from '../core/text/glob.ts'
import type { BlockedMessage, BufferedCalls } from '../dialect/dialect.ts'
import { leaseFor } from '../http/body.ts'
import { isSuccess } from '../http/upstream.ts'
import { isEventStream, UpstreamFailed, type UpstreamResponse, withoutCompression } from '../http/upstream-response.ts'
import { type Answer, beginAnswer, redirectAll, saveResults } from './answer/answer-response.ts'
import { type ClientStream, openClientStream } from './answer/client-stream.ts'
import { bodyFilter, type ResponseFilter, streamFilter } from './answer/held-response.ts'
import { emitFor, noteVerdict } from './begin-exchange.ts'
import { countFault, isolated, noteFault } from './fault.ts'
import { type AnswerVariant, askForAnswer, endAfterFault, passError } from './final-answer.ts'
import { noteGap } from './note-gap.ts'
import {
  announcementFor,
  isUnsupported,
  placesFor,
  type RequestVariant,
  readAgain,
  type SpokenRequest,
} from './request-edits.ts'
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
  /** A call was blocked: from then on the client's own bytes could bring it again. */
  firstBlock: Block | undefined
}

/** Sends the request and gives the client the response without blocked calls. @throws {UpstreamFailed} */
export async function filterCalls(turn: Turn): Promise<void> {
  const { exchange, services, request, runState, sent } = turn
  // No call can be blocked in an answer that the client fetches later: one of a model in a loop comes at once.
  const isInLoop = sent.isFetchedLater && isolated(services.emit, 'loop_guard', mayBlockLoop, request, runState)
  const edits = isInLoop ? sent.answerAtOnce?.() : undefined
  const asked = edits ? { ...turn, ...readAgain(exchange, turn, edits) } : turn
  if (asked.sent.isFetchedLater) void noteGap(services, 'background', turn.found)
  const x = { ...asked, call: withoutCompression(asked.call) }
  const { variant, response } = await sendSpoken(x)
  if (!isSuccess(response.head)) return relayResponse(x, response)
  const lease = leaseFor(services.buffers, exchange.client)
  const client = openClientStream(exchange.client, x.governorHeaders)
  const filter = (await isEventStream(response))
    ? streamFilter(x, client, lease, response)
    : bodyFilter(x, client, lease)
  const filtering: Filtering = { x, client, filter, variant, firstBlock: undefined }
  try {
    await judgeResponses(filtering, response)
  } catch (error) {
    const { firstBlock } = filtering
    const isFault = !(error instanceof UpstreamFailed) || error.failure.code === 'upstream_undecodable'
    if (!firstBlock || !isFault || client.to.status() !== 0 || client.to.isGone()) throw error
    endAfterFault(answerOf(filtering, [], firstBlock), error)
  }
}

/** Reads responses until one has calls that go to the client, or the run is over. */
async function judgeResponses(filtering: Filtering, first: UpstreamResponse): Promise<void> {
  const { x, client, filter } = filtering
  const rounds: BlockedMessage[] = []
  /** The model was asked without the tools of the blocked calls. */
  let isWithoutTools = false
  let buffered = await filter.take(first)
  for (;;) {
    const { blocked, end } = buffered?.calls.length
      ? await judge(x, buffered.calls, rounds.length > 0)
      : NOTHING_BLOCKED
    const blocks = blocked.filter((block) => block !== undefined)
    const [firstBlock] = blocks
    if (!buffered || !firstBlock) {
      await redirectAll(x, rounds, buffered)
      return filter.release(NO_CALLS)
    }
    noteBlocks(filtering, blocks)
    const round = { buffered, results: blocked.map((block) => block?.text ?? NOT_EXECUTED) }
    if (!end && blocks.length < buffered.calls.length) {
      const positions = new Set<number>()
      for (const [at, block] of blocked.entries()) if (block) positions.add(at)
      await saveResults(x, round, positions, rounds)
      return filter.release(positions)
    }
    rounds.push(round)
    const unseen = distinctIds(buffered.calls.map(({ id }) => id))
    if (unseen.length > 0) void changeSession(x, withoutRelayed, [unseen])
    const isRefusedAgain = rounds.length > MAX_REASKS
    const ending = end ?? (isWithoutTools ? firstBlock : isRefusedAgain ? blocks.find(endsIfRefusedAgain) : undefined)
    if (ending) return endRun(filtering, rounds, ending)
    let next: BufferedCalls | UpstreamResponse | undefined
    for (const form of [...(isRefusedAgain ? [] : continuing(filtering, rounds)), ...withoutTools(filtering, rounds)]) {
      isWithoutTools = form.features.length > 0
      next = await askAgain(filtering, form)
      if (next) break
    }
    x.services.emit({ kind: 'asked_again', outcome: next && 'calls' in next ? 'answered' : 'failed' })
    if (!next) return endRun(filtering, rounds, firstBlock)
    // The error of a provider that is busy ends no run: the same request, sent again, gets the same blocks.
    if ('head' in next) return passError(x, client, next)
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
  const block = judgement.blocked.find((one) => one !== undefined)
  if (block) state.decided = { ...state.decided, verdict: 'block', said: block.text }
  for (const { guard, error } of judgement.faults) countFault(services.emit, error, guard)
  return judgement
}

function noteBlocks(filtering: Filtering, blocks: readonly Block[]): void {
  const { x, client } = filtering
  filtering.firstBlock ??= blocks[0]
  const { exchange, names, runState, request } = x
  if (!runState.thread.noticeSent) void changeSession(x, changeThread, [{ noticeSent: true }])
  for (const { guard, tool, loop } of blocks) {
    emitFor(exchange, { kind: 'call_blocked', pattern: loop?.pattern ?? guard, tool, client: request.agent, ...names })
    noteVerdict(exchange, 'block', loop?.pattern)
  }
  const loop = blocks.at(-1)?.loop
  client.governorHeaders = {
    ...client.governorHeaders,
    'x-governor-verdict': 'block',
    ...(loop ? { 'x-governor-loop': `${loop.pattern};count=${loop.count}` } : {}),
  }
}

/**
 * Returns the forms that give the model Governor's texts as the results of its calls: also without fields of its own.
 */
function continuing({ x: { sent }, variant }: Filtering, rounds: readonly BlockedMessage[]): RequestVariant[] {
  const { edits = [] } = variant
  const all = sent.continueAfterBlock(rounds)
  if (!all) return []
  const bare = sent.continueAfterBlock(rounds, true) ?? all
  const isSame = bare.length === all.length && bare.every(({ text }, at) => text === all[at]?.text)
  const forms = isSame ? [all] : [all, bare]
  return forms.map((more) => ({ edits: [...edits, ...more], features: [] }))
}

/**
 * Returns the forms that do not offer the tools of the blocked calls: after these calls, or as if they were not made.
 */
function withoutTools(filtering: Filtering, rounds: readonly BlockedMessage[]): RequestVariant[] {
  const { x, variant } = filtering
  const { sent, decision } = x
  const tools = new Set(rounds.flatMap(({ buffered }) => buffered.calls.map(({ name }) => name)))
  const globs = decision.speech?.dropTools ?? []
  const dropping = isUnsupported(x, 'drop_tools')
    ? []
    : sent.dropTools((name) => tools.has(name) || matchesAny(globs, name), sent.banTools('choice_none'))
  if (dropping.length === 0) return []
  const notice = decision.speech?.notice
  const texts = new Set([...(notice === undefined ? [] : [notice]), ...(rounds.at(-1)?.results ?? [])])
  const [place] = placesFor(x, [...texts].join('\n\n'))
  const spoken: RequestVariant = { edits: [...announcementFor(x), ...(place?.edits ?? [])], features: [] }
  return [...continuing({ ...filtering, variant: { ...variant, edits: variant.textEdits } }, rounds), spoken].map(
    ({ edits = [] }) => ({ edits: [...edits, ...dropping], features: ['drop_tools'] }),
  )
}

/**
 * Asks the model again. Returns the calls of its response, or the response if it is an error that has nothing to do
 * with the form of the request; `undefined` if another form may bring a response that can be read. @throws
 * {UpstreamFailed}
 */
async function askAgain(
  { x, filter }: Filtering,
  form: RequestVariant,
): Promise<BufferedCalls | UpstreamResponse | undefined> {
  // The client may send its request again: not if it has the beginning of a response, or if the blocked calls are at
  // the end of a conversation that has only one.
  const maySendAgain = x.exchange.client.status() === 0 && !x.sent.stored?.hasOneEnd
  try {
    const { response } = await sendModel(x, form, () => undefined)
    const { head } = response
    if (isSuccess(head)) return await filter.take(response)
    // Such an error may be due to what Governor added to the request.
    const isRefusedForm = mayBeUnsupported(head, true) || head.overflow !== undefined
    if (!isRefusedForm && maySendAgain) return response
    response.abort()
  } catch (error) {
    if (x.exchange.client.isGone()) throw error
    if (!(error instanceof UpstreamFailed)) noteFault(x.services.emit, error)
    else if (error.failure.code !== 'upstream_undecodable' && maySendAgain) throw error
  }
  return undefined
}

/** Returns where a run stands in its limit of iterations, for the text that ends it. */
function meterOf({ policy, runState }: Turn) {
  return { name: 'iterations', used: runState.iteration, max: policy.enabled ? policy.run.iterations : 0 } as const
}

/** Begins the last answer of a run that a guard ends. */
function answerOf({ x, client }: Filtering, rounds: readonly BlockedMessage[], { guard, fallback }: Block): Answer {
  noteVerdict(x.exchange, 'stop')
  client.governorHeaders = { ...client.governorHeaders, 'x-governor-verdict': 'stop' }
  const how = { isStop: true, fallback, rounds, hasFooter: x.services.policies.stop.hasFooter }
  const ended = { ...x, governorHeaders: client.governorHeaders }
  return beginAnswer(ended, { meter: meterOf(x), reason: guard }, client, how)
}

/** Ends a run: the model is asked for its answer, without tools, after all responses or without the blocked ones. */
async function endRun(filtering: Filtering, rounds: readonly BlockedMessage[], block: Block): Promise<void> {
  const { x, filter, variant } = filtering
  const { sent } = x
  const answer = answerOf(filtering, rounds, block)
  await filter.become(answer)
  const notice = fill(block.askText, meterOf(x))
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
