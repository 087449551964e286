/** One session: what it does, what it has used, what Governor said, and what an operator can do. */
import { useEffect, useRef } from 'preact/hooks'
import type { SessionDetail, Transcript } from '../../ops/sessions/api-schema.ts'
import {
  amount,
  clock,
  compact,
  labelOf,
  limitOf,
  type MeterName,
  money,
  percents,
  rate,
  scopeText,
  span,
  spanUntil,
  wordOf,
} from '../../ops/sessions/labels.ts'
import { Actions, CopyButtons } from './actions.tsx'
import { Chart } from './chart.tsx'
import { agentName, Lanes } from './lanes.tsx'
import { Bar, Chip, Section } from './parts.tsx'
import type { Store } from './state.ts'

type Loop = NonNullable<SessionDetail['loop']>
type Terminal = NonNullable<SessionDetail['terminal']>

/** How many of the newest iterations stand in the timeline. */
const TIMELINE = 30

/** The meters whose amounts have a unit, by the reasons with which they end a run. */
const UNITS: Readonly<Record<string, MeterName>> = { max_cost: 'cost', max_seconds: 'seconds', max_tokens: 'tokens' }

const SAME: Readonly<Record<Loop['pattern'], string>> = {
  ping_pong: 'in the same order',
  cycle: 'in the same order',
  repetition: 'with equal arguments and results',
  same_call: 'with equal arguments',
}

function loopText({ pattern, tools, count, since, warnings, blocked }: Loop): string {
  const told = warnings === 0 ? 'not told yet' : warnings === 1 ? 'told once' : `told ${warnings} times`
  const next = blocked ? ', and these calls are blocked' : ''
  const calls = `${tools.join(' + ') || pattern} ${count} times ${SAME[pattern]}`
  return `${calls}, nothing new since iteration ${since}. The model was ${told}${next}.`
}

/** Returns what was used of the limit that ended a run: `$5.00 of $5.00 today`, `60 of 60`. */
function budgetText({ terminal_reason: reason, budget_used: used, budget_max: max, scope = 'run' }: Terminal): string {
  const meter = UNITS[reason] ?? 'iterations'
  return `${amount(meter, used)} of ${amount(meter, max)} ${scopeText(scope)}`.trimEnd()
}

/** Returns the number of the agent whose end and answer a session shows: the last one that ended, or that completed. */
function endedThread({ threads, terminal }: SessionDetail): number {
  const isIt = (one: SessionDetail['threads'][number]) => (terminal ? one.terminal !== null : one.state === 'completed')
  return threads.findLast(isIt)?.thread ?? 1
}

/** What a person should know first. */
function Alerts({ detail }: { detail: SessionDetail }) {
  const { threads, terminal, error, last_error: why, iterations, unguarded } = detail
  const failed = iterations.findLast(({ status }) => status !== 200)
  return (
    <>
      {threads.map(({ thread, asking, loop }) => (
        <div key={thread}>
          {asking && (
            <p class="say warn">
              The limit of {limitOf(asking.limit, asking.max)} is reached. A request waits {spanUntil(asking.until)} for
              you: extend it or stop it, or the run is stopped.
            </p>
          )}
          {loop && (
            <p class="say bad">
              {threads.length > 1 && <b>{agentName(detail, thread)}: </b>}
              {loopText(loop)}
            </p>
          )}
        </div>
      ))}
      {why && (
        <p class="say bad">
          The newest request failed: {why}
          {error?.code && error.code !== 'context_overflow' && ` (${error.code.replaceAll('_', ' ')})`}
          {failed?.overflow && `, recovery ${failed.overflow.replaceAll('_', ' ')}`}.
        </p>
      )}
      {unguarded.length > 0 && (
        <p class="say warn">Not guarded in full: {unguarded.join(', ').replaceAll('_', ' ')}.</p>
      )}
      {terminal && (
        <p class="say quiet">
          {threads.length > 1 && <b>{agentName(detail, endedThread(detail))}: </b>}
          Ended: {terminal.terminal_state.replaceAll('_', ' ')}, {terminal.terminal_reason.replaceAll('_', ' ')},{' '}
          {budgetText(terminal)}
          {terminal.has_final_answer ? ', with an answer' : ', without an answer'}.
        </p>
      )}
    </>
  )
}

/** `used` of `max`, which may be left out, as a bar. */
function Fact(props: { title: string; used?: number | null; max?: number; text: string; note?: string }) {
  const { title, used, max = 0, text, note } = props
  return (
    <div class="fact">
      <dt>{title}</dt>
      <dd>
        <b>{text}</b> {note}
        <Bar used={used ?? 0} max={max} />
      </dd>
    </div>
  )
}

function Facts({ detail }: { detail: SessionDetail }) {
  const { threads, contexts, warnings } = detail
  const leader =
    threads.find(({ state, iteration }) => state === detail.state && iteration === detail.iteration) ?? threads.at(-1)
  /** A limit of its run, or of the session; without one what the whole session used. */
  const fact = (title: string, name: MeterName) => {
    const run = leader?.meters.find((one) => one.name === name)
    const all = detail.meters.find((one) => one.name === name)
    const meter = run && run.max > 0 ? run : all
    if (!meter) return null
    const { used, max } = meter
    const text = name === 'cost' && meter === all ? money(detail) : amount(name, used)
    // One agent's share of what the session used.
    const of = meter === run && threads.length > 1 ? ` · ${agentName(detail, leader?.thread ?? 1)}` : ''
    const note = max > 0 ? `of ${amount(name, max)}` : ''
    return <Fact title={title + of} used={used} max={max} text={text} note={note} />
  }
  const context = contexts.find(({ used }) => used !== null)
  const most = context?.effective ?? context?.base ?? 0
  return (
    <dl class="facts">
      {fact('Iterations', 'iterations')}
      {fact('Cost', 'cost')}
      {context?.used ? (
        <Fact
          title="Context"
          used={context.used}
          max={most}
          text={compact(context.used)}
          note={most > 0 ? `of ${compact(most)}` : 'tokens'}
        />
      ) : null}
      {fact('Time', 'seconds')}
      {fact('Tokens', 'tokens')}
      {fact('Tool calls', 'tool_calls')}
      {detail.seconds_to_limit !== null && (
        <Fact title="A limit at this pace" text={`in ${span(detail.seconds_to_limit)}`} />
      )}
      {warnings.acknowledged + warnings.ignored > 0 && (
        <Fact
          title="Warnings"
          text={String(warnings.acknowledged)}
          note={`of ${warnings.acknowledged + warnings.ignored} heeded`}
        />
      )}
    </dl>
  )
}

function Timeline({ detail }: { detail: SessionDetail }) {
  return (
    <table id="timeline">
      <thead>
        <tr>
          <th>Time</th>
          <th>Agent</th>
          <th>Tools</th>
          <th class="number">Tokens</th>
          <th class="number">Took</th>
          <th class="number">Cost</th>
        </tr>
      </thead>
      <tbody>
        {detail.iterations
          .slice(-TIMELINE)
          .reverse()
          .flatMap((one) => {
            const { at, thread, iteration, tools, usage, status, overflow, verdict, said } = one
            const outcome =
              status === 200 ? tools.join(' ') : (overflow && 'overflow') || (status ? `error ${status}` : 'no answer')
            const row = (
              <tr key={`${at} ${thread} ${iteration}`}>
                <td>{new Date(at).toLocaleTimeString('en-GB')}</td>
                <td>
                  <bdi>{agentName(detail, thread)}</bdi> · {iteration}
                </td>
                <td class={status === 200 ? '' : 'failed'}>
                  <bdi>{outcome}</bdi>
                </td>
                <td class="number">
                  {compact(usage.input)} + {compact(usage.output)}
                </td>
                <td class="number">{(one.duration_ms / 1_000).toFixed(1)} s</td>
                <td class="number">{money(usage)}</td>
              </tr>
            )
            const word = verdict === 'block' ? 'Governor blocked a call:' : 'Governor said:'
            const speech = said && (
              <tr key={`said ${at} ${thread} ${iteration}`} class="governor">
                <td colSpan={6}>
                  <b>{word}</b> {said}
                </td>
              </tr>
            )
            return speech ? [row, speech] : [row]
          })}
      </tbody>
    </table>
  )
}

/** How many tools, agents and models are shown: the dearest. */
const DEAREST = 6

/** What the session cost: by tool, whose results each prompt holds, and by agent and model where there are several. */
function Costs({ detail }: { detail: SessionDetail }) {
  const { agents, models, tools } = detail.costs
  const several = <One,>(list: readonly One[]) => (list.length > 1 ? list.slice(0, DEAREST) : [])
  const shares = percents(tools.map(({ share }) => share))
  const parts = tools.map((one, at) => ({ ...one, percent: shares[at] }))
  const shown = [
    ...parts.filter(({ tool }) => tool !== null).slice(0, DEAREST),
    ...parts.slice(-1),
    ...several(agents).map((one) => ({ ...one, tool: one.thread ? agentName(detail, one.thread) : 'other requests' })),
    ...several(models).map((one) => ({ ...one, tool: one.model })),
  ]
  return (
    <table class="costs">
      <tbody>
        {shown.map((one) => (
          <tr key={one.tool}>
            <td>
              <bdi>{one.tool ?? 'no tool: prompts and answers'}</bdi>
            </td>
            <td class="number">
              {compact(one.input)} in{'percent' in one && ` · ${one.percent} %`}
            </td>
            <td class="number">{money(one)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function Runs({ runs }: Pick<SessionDetail, 'runs'>) {
  return (
    <ul class="runs">
      {runs.map((run) => (
        <li key={`${run.thread} ${run.started_at}`}>
          {clock(run.started_at)}
          {run.ended_at && `–${clock(run.ended_at)}`} · {run.iterations} iterations · {money(run)} ·{' '}
          {run.state === null ? 'left' : wordOf(run.state)}
        </li>
      ))}
    </ul>
  )
}

function Texts({ transcript: { entries, truncated } }: { transcript: Transcript }) {
  return (
    <>
      {truncated && <p>Older texts were dropped.</p>}
      <ol id="texts">
        {entries.map(({ thread, role, text, truncated: isCut, at, terminal_state: ended }) => (
          <li key={`${at} ${thread} ${role}`} class={role}>
            <p>
              {role} · agent {thread} · {new Date(at).toLocaleTimeString('en-GB')}
              {ended && ` · ended: ${ended}`}
            </p>
            <pre dir="auto">{text}</pre>
            {isCut && <p>There was more of it.</p>}
          </li>
        ))}
      </ol>
    </>
  )
}

function Curves({ detail: { minutes } }: { detail: SessionDetail }) {
  if (minutes.length === 0) return null
  return (
    <div class="curves">
      {minutes.some(({ cost_usd }) => (cost_usd ?? 0) > 0) && (
        <Section title="Dollars per minute">
          <Chart minutes={minutes} field="cost_usd" title="Dollars per minute" />
        </Section>
      )}
      <Section title="Tokens per minute">
        <Chart minutes={minutes} field="tokens" title="Tokens per minute" />
      </Section>
    </div>
  )
}

function About({ detail }: { detail: SessionDetail }) {
  const { client, model, upstream, agents, started_at } = detail
  const perMinute = rate(detail)
  const known = [client, `${model ?? 'no model'} via ${upstream ?? '?'}`, agents.total > 1 && `${agents.total} agents`]
  return (
    <p class="about">
      <bdi>{known.filter(Boolean).join(' · ')}</bdi> · since {clock(started_at)}
      {` · ${money(detail)}`}
      {perMinute && perMinute !== '?' && `, ${perMinute}/min`}
    </p>
  )
}

function Body({ store, detail }: { store: Store; detail: SessionDetail }) {
  const { transcript } = store
  const { final_answer: answer } = detail
  return (
    <>
      <About detail={detail} />
      <Alerts detail={detail} />
      <Actions store={store} detail={detail} />
      <Facts detail={detail} />
      <Curves detail={detail} />
      <Section title="Agents">
        <Lanes detail={detail} />
      </Section>
      {detail.costs.agents.length > 0 && (
        <Section title="What costs it" note="results of tools: a share of each prompt by bytes">
          <Costs detail={detail} />
        </Section>
      )}
      <Section title="What happened" note="the newest first">
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a part that scrolls can be scrolled with keys */}
        <section class="scroll" aria-label="Timeline" tabIndex={0}>
          <Timeline detail={detail} />
        </section>
      </Section>
      {detail.runs.length > 1 && (
        <Section title="Runs">
          <Runs runs={detail.runs} />
        </Section>
      )}
      {answer && (
        <Section
          title="Final answer"
          note={detail.threads.length > 1 ? `of ${agentName(detail, endedThread(detail))}` : ''}
        >
          <pre id="answer">{answer.text}</pre>
          {answer.truncated && <p>The first 64 KiB of it.</p>}
        </Section>
      )}
      {transcript && transcript.entries.length > 0 && (
        <Section title="What was said">
          <Texts transcript={transcript} />
        </Section>
      )}
    </>
  )
}

export function Detail({ store }: { store: Store }) {
  const { detail, said } = store
  const box = useRef<HTMLElement>(null)
  useEffect(() => {
    box.current?.focus()
    box.current?.scrollTo(0, 0)
  }, [])
  return (
    <section id="detail" aria-labelledby="detail-title" tabIndex={-1} ref={box}>
      <div class="title">
        <h2 id="detail-title">
          <bdi>{detail ? labelOf(detail) : store.selected}</bdi>
        </h2>
        {detail && <Chip row={detail} />}
        <span class="aside">{detail && <CopyButtons store={store} id={detail.id} />}</span>
        <button
          type="button"
          class="close"
          aria-label="Close"
          onClick={() => {
            location.hash = ''
          }}
        >
          ✕
        </button>
      </div>
      {detail ? <Body store={store} detail={detail} /> : <p role="status">{said || 'loading…'}</p>}
    </section>
  )
}
