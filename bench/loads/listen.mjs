/** Many event streams at once, whose events say when they were sent. */
import { setTimeout as sleep } from 'node:timers/promises'
import { sharedTime } from '../stalls.mjs'
import { CpuMeter } from '../usage.mjs'
import { checkVerdict, connectAgents } from './load.mjs'

const DIGITS = 20

/** When the events in a chunk were sent, in shared time. */
function stampsIn(chunk) {
  const stamps = []
  for (let at = chunk.indexOf('@') + 1; at > 0; at = chunk.indexOf('@', at) + 1) {
    const digits = chunk.latin1Slice(at, at + DIGITS)
    if (digits.length === DIGITS) stamps.push(Number(digits) / 1e6)
  }
  return stamps
}

/**
 * Keeps `agents` streams open for `duration` milliseconds, their beginnings spread over `spread` milliseconds. As
 * pairs of shared times: `first`, from a request's first byte to its first event; `event`, from an event's sending to
 * its arrival. `cpu`: the proxy's microseconds per event.
 */
export async function listen({ port, agents: count, pids, duration, spread, ...options }) {
  const agents = await connectAgents(port, count, { ...options, isStream: true })
  const meter = new CpuMeter(pids)
  const before = meter.read()
  const first = []
  const event = []
  const follow = async ({ next, connection }) => {
    const request = next()
    const began = sharedTime()
    let hasBegun = false
    await connection.send(request, (bytes) => {
      const stamps = stampsIn(bytes)
      const now = sharedTime()
      if (!hasBegun && stamps.length > 0) first.push([began, now])
      hasBegun ||= stamps.length > 0
      for (const sent of stamps) event.push([sent, now])
    })
  }
  const until = performance.now() + duration
  const run = async (agent, index) => {
    await sleep((index * spread) / count)
    while (performance.now() < until) await follow(agent)
    checkVerdict(agent.connection, options.situation)
    agent.connection.close()
  }
  await Promise.all(agents.map(run))
  const cpu = (meter.read() - before) / event.length
  meter.close()
  return { first, event, cpu }
}
