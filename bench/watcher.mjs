/** A process that notices when its core stands still: from `begin` to `end`, as pairs of shared times. */
import { sharedTime } from './stalls.mjs'

const TICK_MS = 1
const STALL_MS = 15

let stalls = []
let last
let timer

function tick() {
  const now = sharedTime()
  if (now - last > STALL_MS) stalls.push([last, now])
  last = now
}

function begin() {
  stalls = []
  last = sharedTime()
  timer = setInterval(tick, TICK_MS)
  return null
}

function end() {
  clearInterval(timer)
  tick()
  return stalls
}

process.on('message', (message) => process.send({ result: message === 'begin' ? begin() : end() }))
process.on('disconnect', () => process.exit())
process.send({ ready: true })
