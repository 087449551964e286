/** The process that loads are sent from: takes `{ load, … }` by message and answers with `{ result }` or `{ error }`. */
import { burst } from './loads/burst.mjs'
import { listen } from './loads/listen.mjs'
import { pace } from './loads/pace.mjs'
import { queue } from './loads/queue.mjs'
import { saturate } from './loads/saturate.mjs'

const LOADS = { burst, listen, pace, queue, saturate }

process.on('message', ({ load, ...options }) => {
  LOADS[load](options).then(
    (result) => process.send({ result: result ?? null }),
    (error) => process.send({ error: error.message }),
  )
})
process.on('disconnect', () => process.exit())
process.send({ ready: true })
