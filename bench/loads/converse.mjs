/** Whole conversations, each request one turn longer than the one before. */
import { Connection } from '../connection.mjs'
import { createGrowingAgent } from '../sessions.mjs'
import { CpuMeter } from '../usage.mjs'

/**
 * The CPU time of `conversations` conversations of `turns` turns to `bytes` bytes, one after the other, in
 * microseconds: a list of the requests' times for each.
 */
export async function converse({ port, pids, bytes, turns, conversations, headers }) {
  const next = createGrowingAgent(bytes, turns, headers)
  const connection = await Connection.open(port)
  const meter = new CpuMeter(pids)
  const times = []
  let before = meter.read()
  for (let conversation = 0; conversation < conversations; conversation++) {
    times.push([])
    for (let turn = 0; turn < turns; turn++) {
      await connection.send(next())
      const now = meter.read()
      times[conversation].push(now - before)
      before = now
    }
  }
  meter.close()
  connection.close()
  return times
}
