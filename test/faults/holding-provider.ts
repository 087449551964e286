/** A provider that can hold all its streams in the middle. */
import { onTestFinished } from 'vitest'
import { type ChatBody, chunks, runaway, serve } from '../support/provider.ts'

export interface HoldingProvider {
  readonly url: string
  /** Holds every stream after its first event from now on. */
  hold(): void
  /** Lets all streams go on. */
  release(): void
  /** How many streams are held. */
  held(): number
}

/** Starts one for the current test: its model calls one tool for ever, as long as it may. */
export async function startHoldingProvider(): Promise<HoldingProvider> {
  let gate = Promise.resolve()
  let open = () => {}
  let held = 0
  let requests = 0
  const script = runaway()
  const provider = await serve(async (request, response) => {
    let text = ''
    for await (const part of request) text += part
    const json = JSON.parse(text) as ChatBody
    const answer = await script({ json } as Parameters<typeof script>[0], ++requests)
    const [first, ...others] = chunks(json, answer, requests)
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(first)
    held++
    await gate
    held--
    response.end(others.join(''))
  })
  onTestFinished(() => provider.close())
  return {
    url: provider.url,
    hold() {
      gate = new Promise((resolve) => {
        open = resolve
      })
    },
    release: () => open(),
    held: () => held,
  }
}
