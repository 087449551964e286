/** A failure of the provider that passes while it is asked for a last answer, in whatever form it takes the request. */
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Answer, ChatBody } from '../support/provider.ts'
import { type Api, chat, errorOf, STOPPED, STREAM, send, TEXT } from '../support/stopped.ts'

const config = { budget: { max_iterations: 1, adaptive: false, announce: 'always' } }

const hasTools = ({ tools }: ChatBody) => Array.isArray(tools) && tools.length > 0
const isBanned = ({ tool_choice: choice }: ChatBody) => JSON.stringify(choice ?? '').includes('none')
const hasNotice = (body: ChatBody) => JSON.stringify(body).includes("You've reached the maximum")
const isAnnounced = (body: ChatBody) => JSON.stringify(body).includes('Tool budget: you have')
const isForced = (body: ChatBody) => hasTools(body) && !isBanned(body) && hasNotice(body)

const forcedChoice = (api: Api) =>
  api === STOPPED[1]
    ? { type: 'tool', name: 'search' }
    : api === chat
      ? { type: 'function', function: { name: 'search' } }
      : { type: 'function', name: 'search' }

/** The only form in which a provider takes the request. */
const FORMS: readonly (readonly [string, (body: ChatBody) => boolean])[] = [
  ['with tools that must not be chosen', (body) => hasTools(body) && isBanned(body)],
  ['without tools, with the announcement', (body) => !hasTools(body) && isAnnounced(body)],
  ['without tools, with the notice alone', (body) => !hasTools(body) && !isAnnounced(body) && hasNotice(body)],
  ['without tools and texts', (body) => !hasTools(body) && !isAnnounced(body) && !hasNotice(body)],
  ['with a forced tool', isForced],
]
const STATUSES = [400, 401, 402, 404, 422, 429, 500, 502, 503, 529]
const ANSWER: Answer = { text: TEXT }
const CALL: Answer = { calls: [{ name: 'search', arguments: { found: 42 } }] }
const refusal: Answer = { status: 400, body: errorOf('this form is not supported') }

/** Asks for the last answer while the provider fails, and again once it is well; returns the replies. */
async function asking(api: Api, stream: boolean, failure: Answer, takes: (body: ChatBody) => boolean) {
  let isWell = false
  const { url, provider, events } = await startBoth(
    ({ json }) => (!isWell ? failure : takes(json) ? (isForced(json) ? CALL : ANSWER) : refusal),
    config,
  )
  const request = takes === isForced ? { ...api.request, tool_choice: forcedChoice(api) } : api.request
  const failed = await send(url, api, request, stream)
  const whileFailing = events.filter(({ kind }) => kind === 'stopped').length
  isWell = true
  const answered = await send(url, api, request, stream)
  const asked = provider.requests.length
  return { failed, answered, whileFailing, repeated: await send(url, api, request, stream), asked, provider }
}

const WAYS = STOPPED.flatMap((api, of) =>
  [false, true].flatMap((stream, way) =>
    FORMS.map(([form, takes], at) => {
      // Each status meets each form, and each dialect whole and streamed: a fifth of all combinations.
      const statuses = STATUSES.filter((_, number) => (number + 2 * of + way) % FORMS.length === at)
      return { name: api.name, api, stream, form, takes, statuses }
    }),
  ),
)

describe.each(WAYS)('$name (stream: $stream), a provider that takes a last request only $form', (way) => {
  const { api, stream, takes, statuses } = way

  it.each(statuses)('passes on a %i that has another reason, and answers the next request', async (status) => {
    const failure: Answer = { status, body: errorOf('Your credit balance is too low.') }
    const { failed, answered, whileFailing, repeated, asked, provider } = await asking(api, stream, failure, takes)
    expect([failed.status, failed.text]).toEqual([status, JSON.stringify(failure.body)])
    expect(failed.headers.get('x-governor-terminal-state')).toBeNull()
    expect(whileFailing).toBe(0)
    for (const { text } of [answered, repeated]) expect(text).toContain('"has_final_answer":true')
    // The answer is recorded: the last request reached nobody. A call is not repeated.
    if (takes !== isForced) expect(provider.requests).toHaveLength(asked)
  })

  it('passes on an error within the answer, and answers the next request', async () => {
    const [[, frame] = ['', '']] = api.failures
    const failure = stream ? { body: frame, headers: STREAM } : { body: api.failedWhole }
    const { failed, answered, whileFailing } = await asking(api, stream, failure, takes)
    expect(failed.text).not.toContain('has_final_answer')
    expect(whileFailing).toBe(0)
    expect(answered.text).toContain('"has_final_answer":true')
  })
})

describe.each(STOPPED)('a stop over $name', (api) => {
  it.each([400, 404, 422])('asks for the first form once more after a passing %i on every form', async (status) => {
    for (const stream of [false, true]) {
      let isWell = false
      const { url, provider } = await startBoth(({ json }) => {
        isWell ||= hasTools(json) && !isBanned(json)
        return !isWell ? { ...refusal, status } : isBanned(json) ? ANSWER : CALL
      }, config)
      for (let request = 0; request < 2; request++) {
        const { text } = await send(url, api, api.request, stream)
        expect(text).toContain('"has_final_answer":true')
        expect(text).not.toContain('"found"')
      }
      const last = provider.requests.at(-1)?.json
      expect(last && isBanned(last) && hasNotice(last)).toBe(true)
    }
  })

  it.each(api.cutOff)('ends a text in place of a forced call as a whole answer, after %s', async (finish, isCutOff) => {
    const request = { ...api.request, tool_choice: forcedChoice(api) }
    for (const stream of [false, true]) {
      const { url } = await startBoth(() => ({ text: TEXT, finish }), config)
      const { text } = await send(url, api, request, stream)
      expect(text).toContain('"has_final_answer":true')
      expect(text.includes('"truncated":true')).toBe(isCutOff)
      expect(api.reasonIn(text)).toBe(isCutOff ? api.cutOff.at(-1)?.[0] : finish)
    }
  })

  it('gives its own text as a whole answer, for whatever reason the model gave none', async () => {
    for (const [finish] of api.cutOff) {
      for (const stream of [false, true]) {
        const { url } = await startBoth(() => ({ text: '', finish }), config)
        const { text } = await send(url, api, api.request, stream)
        expect(text).toContain('(Reached max iterations: 1)')
        expect(api.reasonIn(text)).toBe(api.cutOff.at(-1)?.[0])
      }
    }
  })

  it('begins a run with a human’s message after its own text, although it read no answer of the model', async () => {
    for (const stream of [false, true]) {
      let isWell = false
      const { url } = await startBoth(() => (isWell ? ANSWER : { body: '<html>Bad gateway</html>' }), config)
      await send(url, api, api.request, stream)
      expect((await send(url, api, api.request, stream)).text).toContain('(Reached max iterations: 1)')
      isWell = true
      const said = [
        { role: 'assistant', content: '(Reached max iterations: 1)' },
        { role: 'user', content: 'Now tell me about ships.' },
      ]
      const { messages, input } = api.request as { messages?: object[]; input?: object[] }
      const next = messages ? { messages: [...messages, ...said] } : { input: [...(input ?? []), ...said] }
      const { text, headers } = await send(url, api, { ...api.request, ...next }, stream)
      expect(text).not.toContain('has_final_answer')
      expect(headers.get('x-governor-iteration')).toBe('1/1')
    }
  })

  it('removes nothing before it has tried the client’s own text with tools that must not be chosen', async () => {
    const takes = (body: ChatBody) => hasTools(body) && !hasNotice(body) && !isAnnounced(body) && isBanned(body)
    const { url, provider } = await startBoth(({ json }) => (takes(json) ? ANSWER : refusal), config)
    expect((await send(url, api, api.request, false)).text).toContain('"has_final_answer":true')
    expect(provider.requests.every(({ json }) => hasTools(json))).toBe(true)
  })

  it('uses the text of the answer to the client’s own bytes, without its calls, if every form is refused', async () => {
    for (const stream of [false, true]) {
      const isOwn = (body: ChatBody) => hasTools(body) && !isBanned(body)
      const { url } = await startBoth(({ json }) => (isOwn(json) ? { ...ANSWER, ...CALL } : refusal), config)
      for (let request = 0; request < 2; request++) {
        const { text } = await send(url, api, api.request, stream)
        expect(text).toContain('"has_final_answer":true')
        expect(text).not.toContain('"found"')
      }
    }
  })

  it.each([400, 404, 422])(
    'records the fallback after every form got a %i, if the provider takes the client’s own bytes',
    async (status) => {
      for (const stream of [false, true]) {
        const isOwn = (body: ChatBody) => hasTools(body) && !isBanned(body) && !hasNotice(body)
        const { url, provider } = await startBoth(({ json }) => (isOwn(json) ? CALL : { ...refusal, status }), {
          budget: { max_iterations: 1, adaptive: false },
        })
        const first = await send(url, api, api.request, stream)
        expect(first.text).toContain('(Reached max iterations: 1)')
        expect(first.text).not.toContain('found')
        expect(provider.requests.filter(({ json }) => isOwn(json))).toHaveLength(1)
        const asked = provider.requests.length
        expect((await send(url, api, api.request, stream)).text).toContain('(Reached max iterations: 1)')
        expect(provider.requests).toHaveLength(asked)
      }
    },
  )
})
