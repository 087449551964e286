/** What a client gets, and what is recorded, if its provider fails at the last answer of a run. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type Answer, type ChatBody, type Script, serve } from '../support/provider.ts'
import { type Api, chat, data, errorOf, STOPPED, STREAM, send, TEXT } from '../support/stopped.ts'

const budget = { max_iterations: 1, adaptive: false }
const streamed = (frames: readonly string[]): Answer => ({ body: frames.join(''), headers: STREAM })
/** As many frames as hold half of the text. */
const half = (api: Api) => api.frames({ text: TEXT }).slice(0, 6)

/** The first request for the last answer gets `failure`; those after it an answer. Returns both replies. */
async function failing(api: Api, failure: Answer, stream: boolean, request = api.request) {
  const config = request === api.request ? { budget } : {}
  let asked = 0
  const script: Script = () => (asked++ === 0 ? failure : { text: TEXT })
  const { url, provider, events: told, governor } = await startBoth(script, config)
  const first = await send(url, api, request, stream)
  const before = provider.requests.length
  const second = await send(url, api, request, stream)
  const third = await send(url, api, request, stream)
  return { first, second, third, provider, asked: [before, provider.requests.length], told, governor }
}

const stops = (told: readonly { readonly kind: string }[]) => told.filter(({ kind }) => kind === 'stopped').length

describe.each(STOPPED)('a stop over $name', (api) => {
  it.each(api.failures)(
    'passes on %s in the provider’s own bytes, and the next request asks the model again',
    async (_, failure) => {
      for (const before of [half(api), half(api).slice(0, 1), []]) {
        const frames = [...before, failure]
        const { first, second, third, asked, told } = await failing(api, streamed(frames), true)
        expect([first.status, first.text]).toEqual([200, frames.join('')])
        expect(second.text).toContain('"has_final_answer":true')
        expect(third.text).toContain('"has_final_answer":true')
        // An answer is recorded: only the failed request reached the provider again.
        expect(asked).toEqual([1, 2])
        expect(stops(told)).toBe(1)
      }
    },
  )

  it('stays incomplete if the stream ends without its last event', async () => {
    for (const frames of [half(api), half(api).slice(0, 1), []]) {
      const { first, second, asked } = await failing(api, streamed(frames), true)
      expect([first.status, first.text]).toEqual([200, frames.join('')])
      expect(second.text).toContain('"has_final_answer":true')
      expect(asked).toEqual([1, 2])
    }
  })

  it('breaks off for the client if the provider breaks off', async () => {
    let asked = 0
    const { url: upstream, close } = await serve((request, response) => {
      request.resume().on('end', () => {
        response.writeHead(200, STREAM)
        if (asked++ > 0) return response.end(api.frames({ text: TEXT }).join(''))
        return response.write(half(api).join(''), () => response.destroy())
      })
    })
    onTestFinished(() => close())
    const { url } = await startGovernor(upstream, { budget })
    await expect(send(url, api, api.request, true)).rejects.toThrow('terminated')
    expect((await send(url, api, api.request, true)).text).toContain('"has_final_answer":true')
    expect(asked).toBe(2)
  })

  it.each([
    ['says that it failed', api.failedWhole],
    ['holds an error', errorOf('Overloaded')],
    ['is empty', ''],
    ['is no JSON', '<html>Bad gateway</html>'],
    ['is another object', {}],
  ])('passes on a whole response that %s, and the next request asks the model again', async (_, failed) => {
    for (const stream of [false, true]) {
      const { first, second, third, asked, told } = await failing(api, { body: failed }, stream)
      expect(first.text).toBe(typeof failed === 'string' ? failed : JSON.stringify(failed))
      expect([first.status, first.headers.get('content-type')]).toEqual([200, 'application/json'])
      expect(first.headers.get('x-governor-terminal-state')).toBeNull()
      for (const { text } of [second, third]) expect(text).toContain('"has_final_answer":true')
      expect(asked).toEqual([1, 2])
      expect(stops(told)).toBe(1)
    }
  })

  it.each(api.cutOff)(
    'ends whole for the client where the provider stops for %s, and says so',
    async (finish, isCutOff) => {
      for (const stream of [false, true]) {
        const { url, provider } = await startBoth(() => ({ text: TEXT, finish }), { budget })
        for (let request = 1; request < 7; request++) {
          const { text } = await send(url, api, api.request, stream)
          expect(text).toContain('"has_final_answer":true')
          expect(text.includes('"truncated":true')).toBe(isCutOff)
          expect(api.reasonIn(text)).toBe(isCutOff || request > 1 ? api.cutOff.at(-1)?.[0] : finish)
          // Half an answer is not repeated, because the next request may get all of it; after three attempts it is.
          expect(provider.requests).toHaveLength(isCutOff ? Math.min(request, 4) : 1)
        }
      }
    },
  )

  it('passes an error on unchanged to an agent that ends its run itself', async () => {
    for (const [, failure] of api.failures) {
      const frames = [...half(api), failure]
      const { first, told } = await failing(api, streamed(frames), true, api.ownEnd)
      expect(first.text).toBe(frames.join(''))
      expect(stops(told)).toBe(2)
    }
    const { first } = await failing(api, { body: api.failedWhole }, false, api.ownEnd)
    expect(first.text).toBe(JSON.stringify(api.failedWhole))
    const [finish = ''] = api.cutOff[0] ?? []
    for (const stream of [false, true]) {
      const { url } = await startBoth(() => ({ text: TEXT, finish }))
      const { text } = await send(url, api, api.ownEnd, stream)
      expect(text).toContain('"truncated":true')
      expect(api.reasonIn(text)).toBe(finish)
    }
  })

  describe('after a 500 of the provider', () => {
    const down: Answer = { status: 500, body: errorOf('down') }
    const isBanned = ({ json }: { json: ChatBody }) => JSON.stringify(json.tool_choice ?? '').includes('none')

    it.each([false, true])('passes the error on, and sends the retry in another form (stream: %s)', async (stream) => {
      const script: Script = (request) => (isBanned(request) ? down : { text: TEXT })
      const { url, provider } = await startBoth(script, { budget })
      const first = await send(url, api, api.request, stream)
      expect([first.status, first.text]).toEqual([500, JSON.stringify(down.body)])
      const second = await send(url, api, api.request, stream)
      expect(second.text).toContain('"has_final_answer":true')
      expect(provider.requests.map(isBanned)).toEqual([true, false])
    })

    it.each([false, true])(
      'gives the fallback after three errors within ten seconds, but still asks the provider (stream: %s)',
      async (stream) => {
        let time = 1_700_000_000_000
        let isDown = true
        const script: Script = () => (isDown ? down : { text: TEXT })
        const { url, provider } = await startBoth(script, { budget }, { now: () => time })
        for (const after of [0, 3_000, 6_000]) {
          time += after === 0 ? 0 : 3_000
          expect((await send(url, api, api.request, stream)).status).toBe(500)
        }
        time += 4_000
        for (let more = 0; more < 2; more++) {
          const given = await send(url, api, api.request, stream)
          expect(given.status).toBe(200)
          expect(given.text).toContain('(Reached max iterations: 1)')
          expect(given.text).toContain('"has_final_answer":false')
        }
        expect(provider.requests).toHaveLength(5)
        isDown = false
        expect((await send(url, api, api.request, stream)).text).toContain('"has_final_answer":true')
      },
    )
  })

  it.each([429, 503, 529])('passes on every %i, however many there are', async (status) => {
    let time = 1_700_000_000_000
    const busy: Answer = { status, body: errorOf('busy'), headers: { 'retry-after': '7' } }
    const { url } = await startBoth(() => busy, { budget }, { now: () => time })
    for (let request = 0; request < 5; request++) {
      const { status: got, headers, text } = await send(url, api, api.request, true)
      expect([got, headers.get('retry-after'), text]).toEqual([status, '7', JSON.stringify(busy.body)])
      time += 10_000
    }
  })

  it.each([400, 404, 422])('goes to the next variant at once after %i', async (status) => {
    const refusal: Answer = { status, body: errorOf('no such thing') }
    const { url, provider } = await startBoth((_, number) => (number < 3 ? refusal : { text: TEXT }), {
      budget,
    })
    expect((await send(url, api, api.request, false)).text).toContain('"has_final_answer":true')
    expect(provider.requests).toHaveLength(3)
    await send(url, api, api.request, false)
    expect(provider.requests).toHaveLength(3)
  })

  it.each([500, 503])(
    'passes on a %i that the provider sends after a first response without an answer',
    async (status) => {
      for (const stream of [false, true]) {
        const silent: Answer = { calls: [{ name: 'search', arguments: {} }] }
        const script: Script = (_, number) =>
          number === 1 ? silent : number === 2 ? { status, body: errorOf('busy') } : { text: TEXT }
        const { url } = await startBoth(script, { budget })
        const first = await send(url, api, api.request, stream)
        expect([first.status, first.text]).toEqual([status, JSON.stringify(errorOf('busy'))])
        const second = await send(url, api, api.request, stream)
        expect(second.text).toContain('"has_final_answer":true')
      }
    },
  )
})

it('a stopped request passes on a stream that contains only its end, and asks again with the next request', async () => {
  const nothing = streamed(['data: [DONE]\n\n'])
  const script: Script = (_, number) => (number === 1 ? nothing : { text: TEXT })
  const { url } = await startBoth(script, { budget })
  expect((await send(url, chat, chat.request, true)).text).toBe('data: [DONE]\n\n')
  expect((await send(url, chat, chat.request, true)).text).toContain('"has_final_answer":true')
})

it('a stopped request breaks off a stream that has begun when the next variant gets a 503', async () => {
  const chunk = (delta: object, finish: string | null = null) =>
    data({ id: 'x', object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason: finish }] })
  const thought = streamed([
    chunk({ role: 'assistant', reasoning_content: 'Hm.' }),
    chunk({}, 'stop'),
    'data: [DONE]\n\n',
  ])
  const busy: Answer = { status: 503, body: errorOf('busy') }
  const script: Script = (_, number) => (number === 1 ? thought : number === 2 ? busy : { text: TEXT })
  const { url, until } = await startBoth(script, { budget })
  await expect(send(url, chat, chat.request, true)).rejects.toThrow('terminated')
  await until((event) => event.kind === 'request_ended' && event.outcome === 'upstream_failed')
  expect((await send(url, chat, chat.request, true)).text).toContain('"has_final_answer":true')
})
