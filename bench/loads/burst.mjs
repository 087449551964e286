/** So many requests at the same moment, once or several times. */
import { connectAgents } from './load.mjs'

export async function burst({ port, agents: count, times, ...options }) {
  const agents = await connectAgents(port, count, options)
  for (let at = 0; at < times; at++) {
    await Promise.all(agents.map(({ next, connection }) => connection.send(next())))
  }
  for (const { connection } of agents) connection.close()
}
