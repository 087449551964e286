/** The last answer of a run: asked for without tools, and kept for a client that loses it. */
import { type FinalAnswer, type Limit, type Terminal, terminalOf } from '../core/terminal.ts'
import type { Channel } from '../core/verdict.ts'
import type { ToolBan } from '../dialect/dialect.ts'
import { formatIn } from '../dialect/format.ts'
import type { Edit } from '../json/edit.ts'
import { type BegunAnswer, createAnswer, type Ending, passOn, sendFallback, sendOwn } from './answer.ts'
import { tapFor } from './bill.ts'
import type { ProxyContext } from './context.ts'
import {
  announcementFor,
  blame,
  droppedFor,
  isRefused,
  mayBeRefusal,
  type PlacedNotice,
  placesFor,
  returnIteration,
  withEdits,
} from './forward.ts'
import { responseHeaders } from './headers.ts'
import { type Incoming, open, UpstreamFailed, uncoded } from './incoming.ts'
import type { Judgement } from './judge.ts'
import type { OwnHeaders } from './reply.ts'
import { faultOf, type Trip } from './trip.ts'
import type { UpstreamCall } from './upstream.ts'

/** One way to ask for the last answer. */
export interface Form {
  readonly call: UpstreamCall
  readonly channel?: Channel
  readonly ban?: ToolBan
  readonly announces?: boolean
}

/** A model that says nothing is asked once more, not for ever. */
const MAX_ANSWERS = 2

/** Says in the headers how a run ended. */
export function terminalHeaders({ terminal_state: state, terminal_reason: reason }: Terminal): OwnHeaders {
  return { 'x-governor-terminal-state': state, 'x-governor-terminal-reason': reason }
}

/** Answers a stopped request, or one by which an agent ends itself. */
export async function answerLast(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  bytes: Buffer,
  own: OwnHeaders,
): Promise<void> {
  const { dialect } = trip.route
  if (!dialect) return
  const { verdict, position, policy } = judgement
  const isStop = verdict.kind === 'stop'
  const limit: Limit = isStop
    ? verdict.limit
    : { meter: { name: 'iterations', used: position.iteration, max: policy.run.iterations } }
  const terminal = (hasFinalAnswer: boolean) => terminalOf(limit, judgement.sessionId ?? '', hasFinalAnswer)
  const ending: Ending = {
    context,
    trip,
    judgement,
    dialect,
    own,
    ownAtEnd: { ...own, ...terminalHeaders(terminal(false)) },
    isStop,
    fallback: isStop ? verdict.fallback : '',
    isJson: formatIn(judgement.request.list) !== undefined,
    terminal,
  }
  const plain = uncoded(call)
  try {
    await ask(
      ending,
      isStop ? stopForms(ending, plain, bytes, verdict.notice) : ownForms(ending, plain, bytes),
    )
  } catch (error) {
    if (trip.isClientGone()) return
    if (!(error instanceof UpstreamFailed)) return endInFault(ending, error as Error)
    returnIteration(judgement)
    trip.fail(error.failure, own)
  }
}

/** A fault of Governor's own on the way to an answer: the limit stays reached, so that the fallback text is all there is. */
function endInFault(ending: Ending, error: Error): void {
  const { context, trip, isStop } = ending
  if (!isStop || trip.response.headersSent) throw error
  context.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  sendFallback(ending)
}

/**
 * The forms in which a stop is asked, best first: tools left in place but not to be chosen keeps the provider's
 * prompt cache; each of the others is for providers that refuse the one before.
 */
function stopForms(ending: Ending, call: UpstreamCall, bytes: Buffer, notice: string): Form[] {
  const { context, trip, judgement } = ending
  const { request, policy } = judgement
  // It stands in every request of a run, the last one included: the system text begins the prompt.
  const announcing = announcementFor(context, trip, judgement)
  // So does the list of tools, which the requests before went without.
  const dropping = droppedFor(context, trip, judgement, policy.dropTools, [])
  const form = (
    place: PlacedNotice | undefined,
    ban: ToolBan,
    announced: readonly Edit[] = announcing,
  ): Form => ({
    call: withEdits(call, bytes, [
      ...announced,
      ...request.banTools(ban),
      ...(ban === 'choice_none' ? dropping : []),
      ...(place?.edits ?? []),
    ]),
    ban,
    announces: announced.length > 0,
    ...(place ? { channel: place.channel } : {}),
  })
  // An agent that asks for its last answer itself needs not be told twice.
  const places = judgement.endsItself ? [] : placesFor(context, trip, judgement, notice)
  const [best] = places
  const choosing = request.conversation.offersTools && !isRefused(context, trip, judgement, 'tool_choice')
  return [
    ...(choosing ? [form(best, 'choice_none')] : []),
    ...(announcing.length > 0 ? [form(best, 'no_tools')] : []),
    ...places.map((place) => form(place, 'no_tools', [])),
    // The client's own words alone, for an upstream that takes nothing else.
    form(undefined, 'no_tools', []),
  ]
}

/** An agent that ends itself is asked nothing; only the announcement stays where it was. */
function ownForms({ context, trip, judgement }: Ending, call: UpstreamCall, bytes: Buffer): Form[] {
  const announcing = announcementFor(context, trip, judgement)
  const own: Form = { call }
  return announcing.length === 0
    ? [own]
    : [{ call: withEdits(call, bytes, announcing), announces: true }, own]
}

/** Goes through the forms until one brings an answer. */
export async function ask(ending: Ending, forms: readonly Form[], begun?: BegunAnswer): Promise<void> {
  const answer = createAnswer(ending, begun)
  let refused: { form: Form; status: number } | undefined
  let answers = 0
  for (const form of forms) {
    if (answers === MAX_ANSWERS) break
    const incoming = await openNext(ending, form, answer.hasBegun)
    if (!incoming) break
    const { status } = incoming.head
    const mayGoOn = mayBeRefusal(incoming.head, form.ban === 'choice_none')
    if (mayGoOn && (ending.isStop || form !== forms.at(-1))) {
      refused = { form, status }
      incoming.body.destroy()
      continue
    }
    if (status !== 200) {
      if (answer.hasBegun) break
      returnIteration(ending.judgement)
      // A provider's error is the provider's to tell.
      return passOn(
        ending.trip,
        incoming.head,
        responseHeaders(incoming.head.headers),
        ending.own,
        incoming.body,
      )
    }
    if (refused) blameFor(ending, refused.form, form, refused.status)
    refused = undefined
    answers++
    if (await answer.take(incoming)) return answer.complete()
  }
  await answer.giveFallback()
}

/** A second try that gets no response is no reason to lose what the first one brought. */
async function openNext(ending: Ending, form: Form, hasBegun: boolean): Promise<Incoming | undefined> {
  try {
    const { context, trip, judgement } = ending
    return await open(trip, form.call, (head) => tapFor(context, trip, judgement, form.call, head))
  } catch (error) {
    if (hasBegun && !ending.trip.isClientGone()) return undefined
    throw error
  }
}

/** What the accepted form does not have and the refused one had is what was refused. */
function blameFor({ context, trip, judgement }: Ending, refused: Form, accepted: Form, status: number): void {
  if (refused.announces && !accepted.announces) blame(context, trip, judgement, 'announce', status)
  else if (refused.channel && refused.channel !== accepted.channel)
    blame(context, trip, judgement, refused.channel, status)
  else if (refused.ban === 'choice_none' && accepted.ban === 'no_tools') {
    blame(context, trip, judgement, 'tool_choice', status)
  }
}

/** Gives a stopped run its recorded answer again, without asking the provider. */
export function repeatAnswer(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  answer: FinalAnswer,
  own: OwnHeaders,
): void {
  const { dialect } = trip.route
  if (!dialect) return
  context.emit({ kind: 'answer_repeated' })
  const headers = {
    ...own,
    ...terminalHeaders(answer.terminal),
    'x-governor-loop': answer.loop ?? own['x-governor-loop'],
  }
  sendOwn(context, trip, dialect, answer, judgement.request, headers)
}
