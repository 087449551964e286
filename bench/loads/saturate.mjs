/** As many requests as a proxy can take from so many agents, and the CPU time it spends on them. */
import { CpuMeter } from '../usage.mjs'
import { checkVerdict, connectAgents } from './load.mjs'

/** Not counted: what has rested begins to work again, and every connection has its first request. */
const LEAD_MS = 150
/** A slow proxy gets more time until it has answered so many, but no more than that. */
const ENOUGH = 40
const LIMIT_MS = 4_000

/**
 * Keeps so many `agents` sending for `duration` milliseconds, and for at most `limit` until `enough` requests are answered. Returns per request `cpu`, in µs, with all that was done
 * meanwhile, collections included; `rate`, in requests a second; `busy`, the share of a core. `pids`: the proxy's
 * processes; none for the provider itself.
 */
export async function saturate({ port, agents: count, pids, duration, enough = ENOUGH, limit = LIMIT_MS, ...options }) {
  const agents = await connectAgents(port, count, options)
  const meter = new CpuMeter(pids)
  let answered = 0
  let isOver = false
  let since
  const began = performance.now()
  const note = () => {
    const now = performance.now()
    if (since) answered++
    else if (now - began > LEAD_MS) since = { time: now, cpu: meter.read() }
    const time = since ? now - since.time : 0
    isOver ||= time > limit || (time > duration && answered >= enough)
  }
  const run = async ({ next, connection }) => {
    while (!isOver || !next.isBetweenSessions()) {
      await connection.send(next())
      if (!isOver) note()
    }
  }
  const runs = agents.map(run)
  await Promise.race(runs)
  const time = performance.now() - since.time
  const cpu = meter.read() - since.cpu
  const measured = answered
  await Promise.all(runs)
  meter.close()
  for (const { connection } of agents) {
    checkVerdict(connection, options.situation)
    connection.close()
  }
  return { cpu: cpu / measured, rate: measured / (time / 1000), busy: cpu / 1000 / time }
}
