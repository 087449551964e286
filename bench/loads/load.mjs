/** What the loads share: agents with a connection each, and the check that Governor did what is being measured. */
import { Connection } from '../connection.mjs'
import { createAgent } from '../sessions.mjs'
import { SITUATIONS } from '../situations.mjs'

/** Agents as `createAgent` makes them, each with a connection to `port`. */
export function connectAgents(port, count, options) {
  return Promise.all(
    Array.from({ length: count }, async (_, index) => ({
      ...createAgent({ ...options, index, count }),
      connection: await Connection.open(port),
    })),
  )
}

/** @throws when Governor decided anything but what the situation is about: the figures would be of something else. */
export function checkVerdict({ head }, situation) {
  const verdict = /\r\nx-governor-verdict: *(\w+)/i.exec(head)?.[1]
  const { verdict: expected } = SITUATIONS[situation]
  if (verdict !== undefined && verdict !== expected) {
    throw new Error(`${situation}: the verdict was ${verdict}, not ${expected}`)
  }
}
