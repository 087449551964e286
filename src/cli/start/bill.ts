/** What Governor says to people on a terminal: a line for each stop, block and question, and the bill at the end. */
import { LRUCache } from 'lru-cache'
import { fill } from '../../core/budget/budget-notices.ts'
import { ALL_LIMITS, METERS, tokens } from '../../core/budget/meters.ts'
import { REASONS, type Terminal } from '../../core/terminal.ts'
import { dollarText } from '../../core/text/dollars.ts'
import { saidName } from '../../ops/sessions/labels.ts'
import type { OfAgent, ProxyEvent } from '../../telemetry/event.ts'
import { counted, fitted, visible } from '../terminal-text.ts'

/** Returns how a run ended, `stopped at 60 of 60 iterations, with an answer`. */
export function endText(
  { terminal_reason: reason, budget_used: used, budget_max: max, scope, has_final_answer: hasAnswer }: Terminal,
  isByAgent = false,
): string {
  const { footer, mayResume } = REASONS[reason]
  const name = ALL_LIMITS.find((one) => METERS[one].limit.reason === reason)
  const why = name ? fill(footer, { name, used, max, scope }) : footer
  const how = `${isByAgent ? 'ended itself' : 'stopped'}${mayResume ? ' at ' : ': '}${why.trimEnd()}`
  return `${how}, ${hasAnswer ? 'with' : 'without'} an answer`
}

/** Characters of a client's or a session's name. */
const MAX_NAME = 40

/** An event as people hear of it. `label`: what its session is about, which is in no event itself. */
export type Heard = ProxyEvent & { readonly label?: string | undefined }

/** Returns the program and the session of an event, `claude-cli · fix the parser: `; empty if neither is known. */
function subjectOf(event: OfAgent & Pick<Heard, 'label'>, seesNames: boolean): string {
  const { client, session = '', label = '' } = event
  const name = seesNames ? (saidName({ name: session, label }) ?? label) : ''
  const known = [client ?? '', name].filter((one) => one !== '')
  return known.length === 0 ? '' : `${known.map((one) => fitted(one, MAX_NAME).trimEnd()).join(' · ')}: `
}

/** An event that its person wants to know of: a stop, a block, a question. */
type Spoken = Extract<Heard, { readonly kind: 'stopped' | 'call_blocked' | 'operator_asked' }>

/** Returns whether an event has a line of its own. */
export function isSpoken(event: Heard): event is Spoken {
  return event.kind === 'stopped' || event.kind === 'call_blocked' || event.kind === 'operator_asked'
}

function whatOf(event: Spoken): string {
  if (event.kind === 'stopped') return event.terminal ? endText(event.terminal, event.by === 'agent') : 'stopped'
  if (event.kind === 'call_blocked') return `blocked a repeated call of ${visible(event.tool).slice(0, MAX_NAME)}`
  const { meter: name, used, max, seconds } = event
  return `asks: ${fill('{used} of {max} {unit}', { name, used, max }).trimEnd()}; extend or stop within ${seconds} s`
}

/** Returns the line for an event, if it has one. */
export function spokenLine(event: Heard, seesNames: boolean, pageOf: (id: string) => string): string | undefined {
  if (!isSpoken(event)) return undefined
  const { apiId } = event
  return `${subjectOf(event, seesNames)}${whatOf(event)}${apiId === undefined ? '' : ` · ${pageOf(apiId)}`}`
}

/** How many stops a bill names; the others are counted. */
const MAX_NAMED = 20
/** How many sessions it knows of that Governor would have stopped. */
const MAX_OBSERVED = 10_000
/** How many runs it knows the newest iteration of. */
const MAX_RUNS = 10_000

/**
 * Creates a function that returns whether an answer is the first of an iteration. A model that is asked again in one
 * request, or for a request that failed, answers in the same one; the last answer of a stopped run is in none.
 */
function createIsNext() {
  const newest = new LRUCache<string, number>({ max: MAX_RUNS })
  return ({ run = '', apiId = '', iteration, usage }: Extract<Heard, { readonly kind: 'answered' }>): boolean => {
    if (iteration === 0 || usage.input + usage.output === 0) return false
    const key = `${apiId} ${run}`
    const isSame = apiId !== '' && newest.get(key) === iteration
    newest.set(key, iteration)
    return !isSame
  }
}

/** Creates the bill of a Governor that ends: what went through it, what that cost, and what Governor did. */
export function createBill() {
  // Requests are all that clients sent, also those that failed; `guarded`: those on a path that Governor guards.
  const requests = { requests: 0, guarded: 0, iterations: 0, tokens: 0, cost_usd: 0 }
  // `observed`: stops, had it guarded.
  const sums = { ...requests, notices: 0, loops: 0, blocks: 0, stops: 0, observed: 0 }
  const unpriced = new Set<string>()
  const ends: string[] = []
  /** Sessions whose newest request would have been stopped. */
  const beyond = new Set<string>()
  const isNext = createIsNext()
  return {
    record(event: Heard) {
      if (event.kind === 'request_ended') {
        sums.requests++
        if (event.dialect !== 'none') sums.guarded++
        const { apiId = '', observed } = event
        if (observed !== 'stop') beyond.delete(apiId)
        else if (!beyond.has(apiId)) {
          sums.observed++
          if (beyond.size < MAX_OBSERVED) beyond.add(apiId)
        }
      }
      if (event.kind === 'answered') {
        sums.iterations += Number(isNext(event))
        sums.tokens += event.usage.input + event.usage.output
        sums.cost_usd += event.usage.cost ?? 0
      }
      if (event.kind === 'unpriced_model' && unpriced.size < 3) unpriced.add(fitted(event.model, 40).trimEnd())
      if (event.kind === 'notice') sums.notices++
      if (event.kind === 'loop') sums.loops++
      if (event.kind === 'call_blocked') sums.blocks++
      if (event.kind === 'stopped') {
        sums.stops++
        const { terminal, by } = event
        if (terminal && ends.length < MAX_NAMED) ends.push(subjectOf(event, true) + endText(terminal, by === 'agent'))
      }
    },
    facts: () => ({ ...sums, cost_usd: Math.round(sums.cost_usd * 1e6) / 1e6 }),
    /** `isObserving`: Governor guards nothing. */
    text(isObserving: boolean): string {
      const { requests, iterations, cost_usd: cost, notices, loops, blocks, stops, observed } = sums
      const dollars = cost > 0 || unpriced.size === 0 ? dollarText(cost, cost < 0.1 ? 4 : 2) : '?'
      const names = unpriced.size > 0 ? ` (price not known: ${[...unpriced].join(', ')})` : ''
      const used = `${tokens(sums.tokens, 0).used} tokens, ${dollars}${names}`
      const done = [counted(notices, 'notice'), counted(loops, 'loop')]
      if (blocks > 0) done.push(counted(blocks, 'block'))
      done.push(counted(stops, 'stop'))
      const lines = [done.join(', '), ...ends]
      if (isObserving) lines.push(`only observed: would have stopped ${observed}`)
      const summary = `governor: ${counted(requests, 'request')}, ${counted(iterations, 'iteration')}, ${used}\n`
      return summary + lines.map((line) => `          ${line}\n`).join('')
    },
  }
}
