/** One agent on one connection, one request at a time. */
import { sharedTime } from '../stalls.mjs'
import { checkVerdict, connectAgents } from './load.mjs'

/** The times of `requests` requests, from the first byte sent to the last one received, as pairs of shared times. */
export async function queue({ port, warmup, requests, ...options }) {
  const [{ next, connection }] = await connectAgents(port, 1, options)
  for (let at = 0; at < warmup; at++) await connection.send(next())
  const spans = []
  for (let at = 0; at < requests; at++) {
    const bytes = next()
    const began = sharedTime()
    await connection.send(bytes)
    spans.push([began, sharedTime()])
  }
  checkVerdict(connection, options.situation)
  connection.close()
  return spans
}
