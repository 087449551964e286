/** Asks for the last answer of a run, without tools, and records it for a client that asks again. */
import type { Decision } from '../core/decide.ts'
import { isHopeless, NO_STOP_ATTEMPTS } from '../core/session/run.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import type { ToolBan } from '../dialect/dialect.ts'
import { isSuccess } from '../http/upstream.ts'
import { UpstreamFailed, type UpstreamResponse, withoutCompression } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import {
  type Answer,
  beginAnswer,
  completeAnswer,
  noteAttempt,
  noteUnread,
  sendAnswer,
  takeResponse,
} from './answer/answer-response.ts'
import { type ClientStream, openClientStream } from './answer/client-stream.ts'
import { failExchange, relayTo } from './begin-exchange.ts'
import { noteFault } from './fault.ts'
import {
  announcementFor,
  droppedFor,
  isUnsupported,
  type PlacedNotice,
  placesFor,
  type RequestVariant,
} from './request-edits.ts'
import { type Attempt, mayBeUnsupported, sendModel } from './send-model.ts'
import type { RequestEdit } from './services.ts'
import { keepEnd } from './session/keep-transcript.ts'
import { giveBackIteration, type Turn } from './turn.ts'

/** One way to ask for the last answer. */
export interface AnswerVariant extends RequestVariant {
  /** Identifies the variant among those that failed in a run. */
  readonly name: string
  /** Names of tools: a response that consists of one call of one of them is the answer. */
  readonly keeps?: readonly string[]
  /** It is sent only after another was refused: after a response without an answer it would bring none either. */
  readonly ifRefused?: boolean
}

type Stop = Extract<Decision, { kind: 'stop' }>
type SelfStop = Extract<Decision, { kind: 'self_stop' }>

/** The client's own bytes. At a stop they show whether the provider refused the other variants for their form. */
const OWN_BYTES: AnswerVariant = { features: [], name: 'own_bytes' }

/** How many responses without an answer are accepted before the fallback text. */
const MAX_ANSWERS = 2

/** Answers a stopped request, or one with which an agent ends its run itself. @throws {UpstreamFailed} */
export async function finalAnswer(turn: Turn, decision: Stop | SelfStop): Promise<void> {
  const { exchange, governorHeaders, services } = turn
  const isStop = decision.kind === 'stop'
  const x = { ...turn, call: withoutCompression(turn.call) }
  const client = openClientStream(exchange.client, governorHeaders)
  const fallback = isStop ? decision.fallback : ''
  const hasFooter = isStop && !decision.unsent && services.policies.stop.hasFooter
  const answer = beginAnswer(x, decision.limit, client, { isStop, fallback, rounds: [], hasFooter })
  try {
    if (isStop) return await askForAnswer(answer, stopVariants(x, decision))
    // Its own last request gets at most the announcement that the run had before.
    const edits = announcementFor(x)
    const announced: AnswerVariant = { edits, features: ['announce'], name: 'announced' }
    await askForAnswer(answer, edits.length === 0 ? [OWN_BYTES] : [announced, OWN_BYTES])
  } catch (error) {
    if (!isStop || error instanceof UpstreamFailed || exchange.client.status() !== 0 || exchange.client.isGone())
      throw error
    endAfterFault(answer, error)
  }
}

/**
 * Gives the client the fallback text after a fault of Governor: the limit stays reached, and a blocked call blocked.
 */
export function endAfterFault(
  { x, client, fallback: text, terminal: terminalFor, footer }: Answer,
  error: unknown,
): void {
  noteFault(x.services.emit, error)
  const terminal = terminalFor(false)
  keepEnd(x, text, terminal)
  sendAnswer(x, { text, model: x.request.conversation.model, terminal, footer }, client.governorHeaders)
}

/** Returns the variants of a stopped request: first those that keep the prompt cache, none for no request. */
function stopVariants(x: Turn, { speech: { notice }, unsent }: Stop): AnswerVariant[] {
  if (unsent) return []
  const { sent, policy } = x
  // Every request of a run has it, also the last one, as the system text begins the prompt.
  const announcing = announcementFor(x)
  // The list of tools also begins the prompt: tools that earlier requests dropped are dropped here too.
  const dropping = droppedFor(x, policy.dropTools, [])
  // An agent that asks for its last answer itself gets no notice.
  const places = notice === undefined ? [] : [...placesFor(x, notice)]
  const [best] = places
  const variants = forcedVariants(x, [...announcing, ...dropping, ...(best?.edits ?? [])])
  const add = (ban: ToolBan, announced: readonly Edit[], place?: PlacedNotice) => {
    const features: RequestEdit[] = []
    if (announced.length > 0) features.push('announce')
    if (place) features.push(place.channel)
    if (ban === 'choice_none') features.push('tool_choice')
    const dropped = ban === 'choice_none' ? dropping : []
    const edits = [...announced, ...sent.banTools(ban), ...dropped, ...(place?.edits ?? [])]
    const name = [ban, ...(place ? [place.channel] : []), ...(announced.length > 0 ? ['announced'] : [])].join('+')
    variants.push({ edits, features, name, ifRefused: name === 'choice_none' && variants.length > 0 })
  }
  if (sent.conversation.offersTools && !isUnsupported(x, 'tool_choice')) {
    add('choice_none', announcing, best)
    // The client's own text, before anything is removed.
    if (best || announcing.length > 0) add('choice_none', [])
  }
  if (announcing.length > 0) add('no_tools', announcing, best)
  for (const place of places) add('no_tools', [], place)
  // The client's own text only, for an upstream that accepts nothing else.
  add('no_tools', [])
  return variants
}

/** Returns the variant whose answer is a call of a forced tool: the named one, or one not called in the run. */
function forcedVariants({ sent, runState }: Turn, edits: readonly Edit[]): AnswerVariant[] {
  const { names, isNamed } = sent.forcedTools()
  if (names.length === 0 || (!isNamed && sent.stored?.previous !== undefined)) return []
  const { conversation } = sent
  const called = new Set<string>()
  let steps = isNamed ? 0 : runState.iteration - 1
  for (let at = conversation.length - 1; at >= 0 && steps > 0; at--) {
    if (conversation.role(at) !== 'assistant') continue
    steps--
    for (const { name } of conversation.calls(at)) called.add(name)
  }
  const keeps = names.filter((name) => !called.has(name))
  if (keeps.length === 0) return []
  const only = isNamed || keeps.length > 1 ? undefined : keeps[0]
  return [{ edits: [...edits, ...sent.banTools('all_but_forced', only)], features: [], name: 'forced_tool', keeps }]
}

/** Returns true if the provider refused this variant and may accept another. */
function isRefused({ head }: UpstreamResponse, isStop: boolean): boolean {
  if (!isStop) return mayBeUnsupported(head)
  return !head.overflow && (head.status === 400 || head.status === 404 || head.status === 422)
}

/** Sends one variant after the other until a response has an answer. @throws {UpstreamFailed} */
export async function askForAnswer(answer: Answer, variants: readonly AnswerVariant[]): Promise<void> {
  const { x, isStop, fallback } = answer
  // Those that failed in this run come last, the newest failure at the end.
  const failed = x.runState.run.stopTries?.failedForms ?? []
  const left = variants.toSorted((one, other) => failed.indexOf(one.name) - failed.indexOf(other.name))
  // Some providers would keep the answer to them in the history, where the client never sees it.
  let mayProbe = isStop && !x.sent.stored?.hasOneEnd && variants.every(({ edits = [] }) => edits.length > 0)
  let refused: AnswerVariant | undefined
  let answers = 0
  for (let first = left.shift(); first && answers < MAX_ANSWERS; first = left.shift()) {
    if (first.ifRefused) continue
    const made = await sendModel(x, first, ({ variant, response }) => {
      if (!isRefused(response, isStop)) return undefined
      refused ??= variant
      const next = left.shift() ?? (mayProbe ? OWN_BYTES : undefined)
      if (next === OWN_BYTES) mayProbe = false
      return next
    }).catch((error) => {
      if (!cannotRepeat(answer) || !(error instanceof UpstreamFailed) || x.exchange.client.isGone()) throw error
      return undefined
    })
    if (!made) break
    const { variant, response } = made
    // The provider refuses every form. If it refuses the client's own bytes as well, that has another reason.
    if (isStop && variant !== OWN_BYTES && isRefused(response, isStop)) {
      response.abort()
      break
    }
    if (!isSuccess(response.head)) return passFailure(answer, made)
    answers++
    const taken = await takeResponse(answer, response, variant.keeps).catch(async (error) => {
      await noteUnread(answer)
      throw error
    })
    if (taken === 'answered') return completeAnswer(answer)
    if (taken === 'failed' && isStop) await noteAttempt(x, { variant: variant.name })
    if (taken !== 'silent') return
    // It is well now: the form that it refused first may have failed for a reason that has passed.
    if (variant === OWN_BYTES && refused) left.push(refused)
  }
  await completeAnswer(answer, fallback, !answer.isUnread || (await noteUnread(answer)))
}

/** True if the client cannot repeat the request: the provider keeps the blocked responses before the end. */
function cannotRepeat({ rounds, x }: Answer): boolean {
  return rounds.length > 0 && x.sent.stored !== undefined
}

/** Passes the provider's error on and records no answer, so that the next request asks again. */
async function passFailure(answer: Answer, { variant, response }: Attempt<AnswerVariant>): Promise<void> {
  const { x, isStop, client, fallback } = answer
  const { services } = x
  const { status, overflow } = response.head
  const mayBeVariant = isStop && status === 500 && !overflow
  const now = services.now()
  const tries = mayBeVariant ? await noteAttempt(x, { variant: variant.name, failedAt: now }) : NO_STOP_ATTEMPTS
  if (cannotRepeat(answer) || isHopeless(tries, now)) {
    response.abort()
    return completeAnswer(answer, fallback, cannotRepeat(answer))
  }
  passError(x, client, response)
}

/** Gives the client the error of a provider; where it has a part of a response already, that breaks off. */
export function passError(x: Turn, client: ClientStream, response: UpstreamResponse): void {
  const { exchange, governorHeaders } = x
  const { status } = response.head
  void giveBackIteration(x, status)
  if (client.to.status() === 0) return relayTo(exchange, response, governorHeaders)
  response.abort()
  const message = `The upstream answered with status ${status} in the middle of a response.`
  failExchange(exchange, { status: 502, code: 'upstream_broken', message, cause: new Error(message) }, governorHeaders)
}

/** Gives a stopped run its recorded answer again, without asking the provider. */
export function replayAnswer(x: Turn, answer: FinalAnswer): void {
  const { services, governorHeaders } = x
  services.emit({ kind: 'answer_repeated' })
  const loop = answer.loop ?? governorHeaders['x-governor-loop']
  sendAnswer(x, answer, { ...governorHeaders, 'x-governor-loop': loop })
}
