/**
 * Loaded into a subject's process (`node --import`): from the message `begin` to the message `end` it notes how its
 * event loop gets on, and answers with the times between one turn of a timer and the next, as pairs of shared times.
 */
import { sharedTime } from '../stalls.mjs'

let turns = []
let timer

function begin() {
  let last = sharedTime()
  turns = []
  timer = setInterval(() => {
    const now = sharedTime()
    turns.push([last, now])
    last = now
  }, 1)
  return null
}

function end() {
  clearInterval(timer)
  return turns
}

process.on('message', (message) => process.send({ result: message === 'begin' ? begin() : end() }))
process.channel.unref()
