/** Reads the events of sessions, as a page does. */
import { onTestFinished } from 'vitest'

/** One event of `/governor/events`. */
export interface Received {
  readonly id: string
  readonly event: string
  readonly data: {
    readonly id?: string
    readonly iteration?: number
    readonly state?: string
    readonly stopping?: boolean
    readonly name?: string | null
  }
}

/** Opens the events of sessions for the current test; `next` waits for one of a kind. */
export async function openEvents(url: string, headers: Record<string, string> = {}) {
  const leave = new AbortController()
  onTestFinished(() => leave.abort())
  const response = await fetch(`${url}/governor/events`, { headers, signal: leave.signal })
  async function* read(): AsyncGenerator<Received> {
    let text = ''
    for await (const chunk of response.body ?? []) {
      text += Buffer.from(chunk).toString()
      for (let end = text.indexOf('\n\n'); end !== -1; end = text.indexOf('\n\n')) {
        const lines = text.slice(0, end).split('\n')
        text = text.slice(end + 2)
        const field = (name: string) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2) ?? ''
        yield { id: field('id'), event: field('event'), data: JSON.parse(field('data')) }
      }
    }
  }
  const events = read()
  const next = async (isIt: (event: Received) => boolean): Promise<Received> => {
    for (;;) {
      const { value, done } = await events.next()
      if (done) throw new Error('the events ended')
      if (isIt(value)) return value
    }
  }
  return { response, next, leave: () => leave.abort() }
}
