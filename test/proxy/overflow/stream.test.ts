import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { watchErrorFrames } from '../../../src/proxy/overflow/find-errors.ts'
import { TOOLS } from '../../support/agent.ts'
import { startBoth } from '../../support/governor.ts'

const delta = (content: string) =>
  `data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', choices: [{ index: 0, delta: { content }, finish_reason: null }] })}\n\n`
const ERROR = {
  error: { message: 'Your input exceeds the context window of this model.', code: 'context_length_exceeded' },
}
const errorEvent = `data: ${JSON.stringify(ERROR)}\n\n`

const ask = async (body: string, config = {}, path = '/v1/chat/completions') => {
  const { url, events } = await startBoth(
    () => ({ status: 200, body, headers: { 'content-type': 'text/event-stream' } }),
    config,
  )
  const response = await fetch(`${url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: 'm',
      stream: true,
      max_tokens: 10,
      tools: TOOLS,
      messages: [{ role: 'user', content: 'hi' }],
      input: [{ role: 'user', content: 'hi' }],
    }),
  })
  return { text: await response.text(), events }
}

const dataOf = (text: string, at: number) =>
  JSON.parse(
    text
      .split('\n\n')
      .at(at)
      ?.replace(/^(?:event: \S+\n)?data: /, '') ?? '',
  )

describe('an error event in a stream', () => {
  it('is annotated inside its own frame', async () => {
    const { text, events } = await ask(`${delta('so')}${errorEvent}`)
    expect(text.startsWith(delta('so'))).toBe(true)
    expect(dataOf(text, 1)).toEqual({
      error: { ...ERROR.error, governor: expect.objectContaining({ recovery: 'compress_only' }) },
    })
    expect(text.split('\n\n').length).toBe(3)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'overflow' }))
  })

  it('is annotated within the response object of a `response.failed` event', async () => {
    const failed = { type: 'response.failed', response: { id: 'r', status: 'failed', error: ERROR.error } }
    const created = `event: response.created\ndata: {"type":"response.created","response":{"id":"r","error": null}}\n\n`
    const { text } = await ask(
      `${created}event: response.failed\ndata: ${JSON.stringify(failed)}\n\n`,
      {},
      '/v1/responses',
    )
    expect(text.startsWith(created)).toBe(true)
    expect(dataOf(text, 1).response.error.governor).toMatchObject({ recovery: 'compress_only' })
  })

  it('is annotated in an error object under `exception`', async () => {
    const exception = { type: 'BadRequestError', message: 'prompt is too long: 9001 tokens > 8192 maximum' }
    const { text } = await ask(`${delta('so')}data: ${JSON.stringify({ id: 'c', exception })}\n\n`)
    expect(text.startsWith(delta('so'))).toBe(true)
    expect(dataOf(text, 1)).toEqual({
      id: 'c',
      exception: {
        ...exception,
        governor: expect.objectContaining({ recovery: 'shrink_context', limit: 8192 }),
      },
    })
  })

  it('is annotated in the choice that has the error', async () => {
    const choices = [
      { index: 0, delta: {}, finish_reason: null },
      { index: 1, finish_reason: 'error', error: ERROR.error },
    ]
    const { text } = await ask(`${delta('so')}data: ${JSON.stringify({ id: 'c', choices })}\n\n`)
    expect(dataOf(text, 1).choices).toEqual([
      choices[0],
      {
        ...choices[1],
        error: { ...ERROR.error, governor: expect.objectContaining({ recovery: 'compress_only' }) },
      },
    ])
  })

  it('keeps its event name when it comes from Anthropic', async () => {
    const error = {
      type: 'error',
      error: { type: 'invalid_request_error', message: 'prompt is too long: 9001 tokens > 8192 maximum' },
    }
    const { text } = await ask(`event: error\ndata: ${JSON.stringify(error)}\n\n`, {}, '/v1/messages')
    expect(text).toMatch(/^event: error\ndata: \{"type":"error","error":\{.*"governor":\{"recovery":"shrink_context"/)
  })

  it('is replaced in its place by the canonical form', async () => {
    const { text } = await ask(`${delta('so')}${errorEvent}`, { overflow: { canonical: true } })
    expect(dataOf(text, 1).error).toMatchObject({
      type: 'invalid_request_error',
      code: 'context_length_exceeded',
      governor: { original: ERROR.error },
    })
  })

  it('is replaced by a canonical error event when it is an `error` event of Responses', async () => {
    const event = {
      type: 'error',
      code: null,
      message: ERROR.error.message,
      param: null,
      sequence_number: 2,
    }
    const body = `event: error\ndata: ${JSON.stringify(event)}\n\n`
    const { text } = await ask(body, { overflow: { canonical: true } }, '/v1/responses')
    const after = dataOf(text, 0)
    expect(after).toMatchObject({ type: 'error', code: 'context_length_exceeded', sequence_number: 2 })
    expect(after.governor.original).toEqual(event)
    expect(after.error).toBeUndefined()
  })

  it.each([
    ['is about something else', `${delta('a')}data: {"error":{"message":"Overloaded","type":"overloaded_error"}}\n\n`],
    ['is quoted by the model', `${delta('{"error": {"message": "prompt is too long"}}')}data: [DONE]\n\n`],
    [
      'belongs to a choice whose text mentions an overflow',
      `data: {"choices":[{"text":"The prompt is too long.","error":{"message":"Overloaded"}}]}\n\n`,
    ],
    ['is null under `exception`', `data: {"exception": null, "message": "prompt is too long"}\n\n`],
    ['is null at the top level', `data: {"error": null, "choices": []}\n\ndata: [DONE]\n\n`],
    ['is not JSON', 'data: {"error": prompt is too long\n\n'],
  ])('stays unchanged when it %s', async (_, body) => {
    expect((await ask(body)).text).toBe(body)
  })
})

describe('watching a stream for error events', () => {
  const frames = fc.array(
    fc.constantFrom(
      delta('text'),
      errorEvent,
      'data: {"exception": {"message": "m"}}\n\n',
      ': ping\n\n',
      'event: x\r\ndata: {"error": null}\r\n\r\n',
      errorEvent.replaceAll('\n', '\r'),
      'event: x\rdata: é\r\r',
      'data: {"a":"\\"error\\""}\n\n',
      'data: é\n\n',
      'data: {"type":"error","message":"m"}\n\n',
    ),
    { maxLength: 8 },
  )

  /** Feeds a text cut at the given places. */
  function fed(text: string, cuts: readonly number[], change: (frame: Buffer, sent: number) => Buffer) {
    const bytes = Buffer.from(text)
    const places = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b)
    const watch = watchErrorFrames(change)
    const out: Buffer[] = []
    const pending: number[] = []
    let fedBytes = 0
    let from = 0
    for (const to of [...places, bytes.length]) {
      out.push(...watch.push(bytes.subarray(from, to)))
      fedBytes = to
      pending.push(fedBytes - out.reduce((sum, piece) => sum + piece.length, 0))
      from = to
    }
    out.push(...watch.end())
    return { out: Buffer.concat(out).toString(), pending }
  }

  it('changes no byte by itself, for any cuts of any stream', () => {
    fc.assert(
      fc.property(frames, fc.array(fc.nat()), fc.boolean(), (parts, cuts, isUnfinished) => {
        const text = parts.join('').slice(0, isUnfinished ? -1 : undefined)
        expect(fed(text, cuts, (frame, sent) => frame.subarray(sent)).out).toBe(text)
      }),
    )
  })

  it('passes on every complete error event and nothing else, for any cuts', () => {
    fc.assert(
      fc.property(frames, fc.array(fc.nat()), (parts, cuts) => {
        const seen: string[] = []
        fed(parts.join(''), cuts, (frame, sent) => {
          seen.push(frame.toString())
          return frame.subarray(sent)
        })
        const errors = parts.filter(
          (part) => /"(?:error|exception)"(?!: null)/.test(part) && !part.includes('\\"error'),
        )
        expect(seen.filter((frame) => !frame.includes('"error": null'))).toEqual(errors)
      }),
    )
  })

  it('holds back no bytes except those of an incomplete error event', () => {
    fc.assert(
      fc.property(frames, fc.array(fc.nat()), (parts, cuts) => {
        const { pending } = fed(parts.join(''), cuts, (frame, sent) => frame.subarray(sent))
        expect(Math.max(...pending)).toBeLessThan(errorEvent.length)
        if (!parts.some((part) => /"(?:error|exception)"/.test(part))) expect(Math.max(...pending)).toBe(0)
      }),
    )
  })

  it.each(['\n\n', '\r\n\r\n', '\r\r'])('handles many error events in one chunk, each ended by %j', (end) => {
    const watch = watchErrorFrames((frame, sent) => Buffer.from(`${sent}:${frame.length};`))
    const frame = `"error"${end}`
    const chunk = Buffer.from(frame.repeat(20_000))
    expect(Buffer.concat(watch.push(chunk)).toString()).toBe(`0:${frame.length};`.repeat(20_000))
    expect(watch.end()).toEqual([])
  })

  it('gives up on a frame that is too long, without buffering it', () => {
    const watch = watchErrorFrames(() => Buffer.from('changed'))
    const long = Buffer.concat([Buffer.from('data: {"error": {"pad":"'), Buffer.alloc(300_000, 0x61)])
    expect(Buffer.concat(watch.push(long)).equals(long)).toBe(true)
    expect(Buffer.concat(watch.push(Buffer.from('"error":"more"}}\n\n'))).toString()).toBe('"error":"more"}}\n\n')
    expect(Buffer.concat(watch.push(Buffer.from(errorEvent))).toString()).toBe('changed')
  })
})
