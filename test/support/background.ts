/** A provider of Responses that makes answers in the background: a client asks for each until it is over. */
import type { IncomingMessage } from 'node:http'
import { onTestFinished } from 'vitest'
import type { Script } from './provider.ts'
import { type ChatBody, serve } from './provider.ts'
import { createKept, eventTexts, type Item, responseEvents, responseObject } from './responses.ts'

interface Made {
  readonly whole: Item
  /** What the next requests for it state, before the whole. */
  readonly left: string[]
}

export interface BackgroundOptions {
  /** What requests for a response state before it is over, oldest first. */
  readonly states?: (number: number) => readonly string[]
  /** How many events of a stream go out before it breaks off; unset: all. */
  readonly cut?: number
}

async function bodyOf(request: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of request) text += chunk
  return text
}

/** Starts one for the current test. `script` answers POST after POST, numbered from 1. */
export async function startBackground(script: Script, { states = () => ['queued'], cut }: BackgroundOptions = {}) {
  const kept = createKept()
  const made = new Map<string, Made>()
  const posts: { readonly body: string; readonly json: ChatBody }[] = []
  const gets: string[] = []
  const { url, close } = await serve(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '', 'http://provider')
    const json = (body: object, status = 200) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
    const stream = (events: readonly string[], to = events.length) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      if (to >= events.length) return response.end(events.join(''))
      // The connection ends in the middle of the body.
      response.write(events.slice(0, to).join(''), () => response.socket?.end())
    }
    const body = await bodyOf(request)
    const [, id = '', action] = /\/responses\/([^/]+)(?:\/(\w+))?$/.exec(pathname) ?? []
    if (id !== '') {
      gets.push(`${request.method} ${request.url}`)
      const known = made.get(id)
      if (!known) return json({ error: { message: 'not found' } }, 404)
      if (action === 'cancel') return json({ ...known.whole, status: 'cancelled', output: [], usage: null })
      const events = eventTexts(responseEvents(known.whole))
      if (searchParams.get('stream') === 'true')
        return stream(events.slice(Number(searchParams.get('starting_after') ?? -1) + 1))
      const status = known.left.shift()
      return json(status === undefined ? known.whole : { ...known.whole, status, output: [], usage: null })
    }
    const asked = JSON.parse(body) as ChatBody
    const opened = kept.open(asked)
    if ('status' in opened) return json(opened.body, opened.status)
    posts.push({ body, json: asked })
    const number = posts.length
    const received = { method: 'POST', target: pathname, rawHeaders: [], body: Buffer.from(body), json: asked }
    const answer = await script({ ...received, ...opened, header: () => undefined }, number)
    const whole: Item = { ...responseObject(asked, answer, number), background: asked['background'] === true }
    kept.close(asked, opened.items, whole)
    made.set(String(whole['id']), { whole, left: [...states(number)] })
    const events = asked.stream ? eventTexts(responseEvents(whole)) : []
    if (asked.stream) return stream(events, asked['background'] ? cut : undefined)
    json(asked['background'] ? { ...whole, status: 'queued', output: [], usage: null } : whole)
  })
  onTestFinished(close)
  return { url, posts, gets }
}
