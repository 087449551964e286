/** As many requests as a proxy can take from so many agents, and the CPU time it spends on them. */
import { CpuMeter } from '../usage.mjs'
import { checkVerdict, connectAgents } from './load.mjs'

/** How long a slow proxy is asked for at most, in ms; it then has answered fewer requests than the others. */
const MAX_MS = 10_000

/**
 * Sends about `requests` requests from so many `agents`: each sends all its sessions as often as that takes, so that
 * every proxy gets the same ones. Before, unless `isCold`, each sends them once, which is not measured, as what has rested
 * begins to work again. Returns per request `cpu`, in µs, with all that was done meanwhile, collections included; `rate`, in requests a
 * second; `busy`, the share of a core. It takes `maxMs` ms at most. `pids`: the proxy's processes; none for the provider
 * itself.
 */
export async function saturate({ port, agents: count, pids, requests, isCold = false, maxMs = MAX_MS, ...options }) {
  const agents = await connectAgents(port, count, options)
  const perTurn = agents.reduce((sum, agent) => sum + agent.requests, 0)
  const turns = Math.ceil(requests / perTurn)
  const run = async ({ next, connection, requests: own }, times) => {
    const end = performance.now() + maxMs
    let sent = 0
    for (; sent < times * own && performance.now() < end; sent++) await connection.send(next())
    return sent
  }
  if (!isCold) await Promise.all(agents.map((agent) => run(agent, 1)))
  const meter = new CpuMeter(pids)
  const before = { cpu: meter.read(), time: performance.now() }
  const sent = await Promise.all(agents.map((agent) => run(agent, turns)))
  const time = performance.now() - before.time
  const cpu = meter.read() - before.cpu
  meter.close()
  for (const { connection } of agents) {
    checkVerdict(connection, options.situation)
    connection.close()
  }
  const answered = sent.reduce((sum, count) => sum + count, 0)
  return { cpu: cpu / answered, rate: answered / (time / 1000), busy: cpu / 1000 / time }
}
