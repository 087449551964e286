/** As many requests as a proxy can take from so many agents, and the CPU time it spends on them. */
import { CpuMeter } from '../usage.mjs'
import { checkVerdict, connectAgents } from './load.mjs'
import { Windows } from './windows.mjs'

/** A slow proxy is not waited for any longer once there are so many windows. */
const LIMIT_MS = 3000
const ENOUGH = 5

/**
 * Keeps so many `agents` sending until so many `windows` are measured; returns their summary, per request. `pids`: the
 * proxy's processes; none for the provider itself.
 */
export async function saturate({ port, agents: count, pids, windows: wanted, ...options }) {
  const agents = await connectAgents(port, count, options)
  const meter = new CpuMeter(pids)
  const windows = new Windows(meter)
  const began = performance.now()
  const isOver = () =>
    windows.length > wanted || (windows.length > ENOUGH && performance.now() - began > LIMIT_MS)
  const run = async ({ next, connection }) => {
    while (!isOver()) {
      await connection.send(next())
      windows.count()
    }
  }
  await Promise.all(agents.map(run))
  meter.close()
  for (const { connection } of agents) {
    checkVerdict(connection, options.situation)
    connection.close()
  }
  return windows.summary()
}
