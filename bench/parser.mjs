/**
 * The process that parses every body of a growing conversation and does nothing else: what a proxy would at least
 * spend that looks at bodies with JSON.parse.
 */
import { growingBodies } from './sessions.mjs'
import { CpuMeter } from './usage.mjs'

/** Microseconds of CPU time for each body, garbage collection included; a list for each conversation. */
function parseAll({ bytes, turns, conversations }) {
  const bodies = growingBodies(bytes, turns).map((body) => Buffer.from(body))
  const meter = new CpuMeter([process.pid])
  const times = Array.from({ length: conversations }, () =>
    bodies.map((body) => {
      const before = meter.read()
      JSON.parse(body.toString())
      return meter.read() - before
    }),
  )
  meter.close()
  return times
}

process.on('message', (message) => process.send({ result: parseAll(message) }))
process.on('disconnect', () => process.exit())
process.send({ ready: true })
