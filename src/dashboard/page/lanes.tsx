/** The agents of a session on one clock. */
import type { SessionDetail } from '../../ops/sessions/api-schema.ts'
import { clock, stateOf } from '../../ops/sessions/labels.ts'

type Iteration = SessionDetail['iterations'][number]
type Thread = SessionDetail['threads'][number]

/** Returns the colour of one call: failed or blocked, Governor spoke, or neither. */
function toneOf({ status, verdict }: Iteration): string {
  if (status !== 200 || verdict === 'block' || verdict === 'stop') return 'bad'
  return verdict === 'warn' ? 'warn' : 'good'
}

/** Returns what people call an agent of a session. */
export function agentName({ threads }: SessionDetail, number: number): string {
  const thread = threads.find((one) => one.thread === number)
  return thread?.name ?? (number === 1 ? 'main' : `agent ${number}`)
}

function Lane(props: { detail: SessionDetail; thread: Thread; start: number; length: number }) {
  const { detail, thread, start, length } = props
  const calls = detail.iterations.filter((one) => one.thread === thread.thread)
  const name = agentName(detail, thread.thread)
  const max = thread.max_iterations > 0 ? ` of ${thread.max_iterations}` : ''
  const label = `${name}: ${stateOf(thread).text}, iteration ${thread.iteration}${max}, ${calls.length} calls`
  return (
    <>
      <bdi class="lane-name" title={label}>
        {name} <small>{thread.iteration + max}</small>
      </bdi>
      <svg class="lane" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label={label}>
        {calls.map((one) => (
          <rect
            key={one.at}
            class={toneOf(one)}
            x={((Date.parse(one.at) - start) / length) * 1_000}
            y={0}
            width={Math.max(3, (one.duration_ms / length) * 1_000)}
            height={14}
          />
        ))}
      </svg>
    </>
  )
}

export function Lanes({ detail }: { detail: SessionDetail }) {
  const begins = detail.iterations.map(({ at }) => Date.parse(at))
  const ends = detail.iterations.map(({ at, duration_ms: took }) => Date.parse(at) + took)
  if (begins.length === 0) return null
  const start = Math.min(...begins)
  const length = Math.max(1, Math.max(...ends) - start)
  const isShort = length < 180_000
  const texts = [0, 1 / 2, 1].map((share) => {
    const time = new Date(start + share * length)
    return isShort ? time.toLocaleTimeString('en-GB') : clock(time.toISOString())
  })
  // Each time once: what took less than a second has one.
  const times = [...new Set(texts)]
  return (
    <>
      <p class="legend">
        <i class="good" /> a call <i class="warn" /> Governor spoke <i class="bad" /> failed, blocked or stopped
      </p>
      <div class="lanes">
        {detail.threads.map((thread) => (
          <Lane key={thread.thread} detail={detail} thread={thread} start={start} length={length} />
        ))}
        <span />
        <p class="axis">
          {times.map((time) => (
            <span key={time}>{time}</span>
          ))}
        </p>
      </div>
    </>
  )
}
