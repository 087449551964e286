/** Reads sessions that an older version of Governor stored, which kept each count in a place of its own. */
import { add, type Counts, countsOf, NO_COUNTS } from '../core/counters.ts'
import type { Run, RunSettings, Session, SessionSettings, Thread } from '../core/session/session.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import type { CallUsage } from '../core/usage.ts'

/** A type whose members of the same names had other types in older versions. */
type Older<Newer, Members> = Omit<Newer, keyof Members | 'counts'> & Members

interface OlderCounts {
  readonly iterations: number
  readonly toolCalls: number
}

interface OlderBase {
  readonly base?: Readonly<Partial<Record<'iterations' | 'tool_calls' | 'tokens' | 'cost' | 'seconds', number>>>
}

type OlderRun = Older<
  Run,
  {
    readonly iteration: number
    readonly toolCalls: number
    readonly usage?: CallUsage
    readonly inherited?: OlderCounts
    readonly operator?: Older<RunSettings, OlderBase>
    readonly finalAnswer?: Older<FinalAnswer, { readonly ended?: OlderCounts & { readonly at: number } }>
  }
>

type OlderSession = Older<
  Session,
  {
    readonly threads: readonly Older<
      Thread,
      {
        readonly run: OlderRun
        readonly interrupted?: Older<NonNullable<Thread['interrupted']>, { readonly run: OlderRun }>
      }
    >[]
    readonly usage?: CallUsage
    readonly totals?: OlderCounts & {
      readonly startedAt: number
      readonly acknowledged: number
      readonly ignored: number
    }
    readonly operator?: Older<SessionSettings, OlderBase>
  }
>

function countsIn({ iterations, toolCalls }: OlderCounts, usage?: CallUsage): Counts {
  return add({ iterations, tool_calls: toolCalls }, usage ? countsOf(usage) : NO_COUNTS)
}

/** Returns the counts of a reset. Its tokens were one sum: which of them were of prompts does not matter. */
function baseIn({ base }: OlderBase, startedAt: number, { input = 0 }: Counts): RunSettings['base'] {
  if (!base) return undefined
  const { seconds = 0, tokens = 0, ...counts } = base
  const ofPrompts = Math.min(tokens, input)
  return { at: startedAt + seconds * 1_000, counts: add(counts, { input: ofPrompts, output: tokens - ofPrompts }) }
}

function runIn({ iteration, toolCalls, usage, inherited, operator, finalAnswer, ...run }: OlderRun): Run {
  const counts = add({ runs: 1 }, countsIn({ iterations: iteration, toolCalls }, usage))
  const { ended } = finalAnswer ?? {}
  return {
    ...run,
    counts,
    inherited: inherited && countsIn(inherited),
    operator: operator && { ...operator, base: baseIn(operator, run.startedAt, counts) },
    finalAnswer: finalAnswer && {
      ...finalAnswer,
      ended: ended && { at: ended.at, counts: countsIn(ended) },
    },
  }
}

/** Returns a session in the form of this version: one that it stored itself as it is. */
export function fromOlder(stored: object): Session {
  if ('counts' in stored) return stored as Session
  const { threads, usage, totals, operator, ...session } = stored as OlderSession
  const { startedAt, acknowledged = 0, ignored = 0, iterations = 0, toolCalls = 0 } = totals ?? {}
  const counts = add({ acknowledged, ignored }, countsIn({ iterations, toolCalls }, usage))
  return {
    ...session,
    threads: threads.map(({ run, interrupted, ...thread }) => ({
      ...thread,
      run: runIn(run),
      interrupted: interrupted && { ...interrupted, run: runIn(interrupted.run) },
    })),
    startedAt,
    counts,
    operator: operator && { ...operator, base: baseIn(operator, startedAt ?? 0, counts) },
  }
}
