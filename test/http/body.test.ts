import { createHash, randomBytes } from 'node:crypto'
import type { Readable } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import fc from 'fast-check'
import { expect, it, onTestFinished } from 'vitest'
import { streamOf } from '../../src/http/body.ts'
import { serve } from '../support/provider.ts'

type Action = 'pause' | 'resume' | 'wait'

/** Reads a stream and does what `actions` say after each chunk, over and over. */
async function read(stream: Readable, actions: readonly Action[]): Promise<string> {
  const hash = createHash('sha256')
  const ended = new Promise<void>((resolve, reject) => {
    stream.once('end', resolve)
    stream.once('error', reject)
  })
  stream.on('data', async (chunk: Buffer) => {
    hash.update(chunk)
    for (const action of actions) {
      if (action === 'wait') await setImmediate()
      else stream[action]()
    }
    stream.resume()
  })
  await ended
  return hash.digest('hex')
}

it('the stream of a body gives every byte to a reader that pauses and resumes at any time', async () => {
  let actions: readonly Action[] = []
  const server = await serve(async (request, response) => {
    response.end(await read(streamOf(request), actions))
  })
  onTestFinished(() => server.close())
  const action = fc.constantFrom<Action>('pause', 'resume', 'wait')
  await fc.assert(
    fc.asyncProperty(
      fc.array(action, { maxLength: 8 }),
      fc.integer({ min: 1, max: 1_000_000 }),
      async (chosen, size) => {
        actions = chosen
        const body = randomBytes(size)
        const response = await fetch(server.url, { method: 'POST', body })
        expect(await response.text()).toBe(createHash('sha256').update(body).digest('hex'))
      },
    ),
    { numRuns: 60 },
  )
})
