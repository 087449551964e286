/** Requests at a steady pace, which a stall of the machine delays and does not bunch. */
import { setTimeout as sleep } from 'node:timers/promises'
import { connectAgents } from './load.mjs'

/** Sends `requests` requests, `interval` milliseconds apart at least, from `agents` in turn. */
export async function pace({ port, agents: count, interval, requests, ...options }) {
  const agents = await connectAgents(port, count, options)
  const answers = []
  for (let at = 0; at < requests; at++) {
    const { next, connection } = agents[at % count]
    await answers[at - count]
    answers.push(connection.send(next()))
    await sleep(interval)
  }
  await Promise.all(answers)
  for (const { connection } of agents) connection.close()
}
