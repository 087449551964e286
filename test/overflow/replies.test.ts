import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { classify, type Overflow, type Recovery, ROWS, type Row, statedNumbers } from '../../src/overflow/index.ts'

/** Returns a value as Python prints it. */
function printed(value: unknown): string {
  if (typeof value === 'string') {
    const text = value.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')
    return text.includes("'") && !text.includes('"') ? `"${text}"` : `'${text.replaceAll("'", "\\'")}'`
  }
  const fields = Object.entries(value as Record<string, unknown>)
  return `{${fields.map(([name, field]) => `'${name}': ${printed(field)}`).join(', ')}}`
}

/** A reply of a provider, shortened, and what it means; a line of `replies.jsonl`. */
interface Example {
  readonly id: string
  readonly status: number
  readonly body: unknown
  readonly means: Recovery | 'not_overflow'
  /** All numbers that the reply states, by the names that clients see; if it is absent, numbers are not compared. */
  readonly numbers?: Readonly<Record<string, number>>
}

const EXAMPLES = readFileSync(new URL('./replies.jsonl', import.meta.url), 'utf8')
  .trim()
  .split('\n')
  .map((line): Example => JSON.parse(line))

function numbersOf(overflow: Overflow): object {
  const { limit, promptTokens, maxOutput, overflowBy } = statedNumbers(overflow)
  return { limit, prompt_tokens: promptTokens, max_output: maxOutput, overflow_by: overflowBy }
}

describe('the classification of provider replies', () => {
  it.each(EXAMPLES)('of $id is $means', ({ status, body, means, numbers }) => {
    const overflow = classify({ status, body })?.overflow
    expect(overflow?.recovery ?? 'not_overflow').toBe(means)
    if (overflow && numbers) expect(numbersOf(overflow)).toEqual(numbers)
  })

  it('is tested with examples whose ids are unique', () => {
    expect(new Set(EXAMPLES.map(({ id }) => id)).size).toBe(EXAMPLES.length)
  })

  it('has an example for every row that no earlier row matches', () => {
    const rows = ROWS.map((row, at): Row => ({ ...row, id: `${row.id} #${at}`, means: 'unknown_overflow' }))
    const taken = new Set(EXAMPLES.map((example) => classify(example, { rows })?.quirk))
    expect(rows.filter(({ id }) => !taken.has(id)).map(({ id }) => id)).toEqual([])
  })

  it('has an id and a documented source for every row', () => {
    for (const { id, source } of ROWS) {
      expect(id).toMatch(/^[a-z0-9-]{3,40}$/)
      expect(source, id).toMatch(/\w/)
    }
  })

  it('is the same for a bare error as for the error in any envelope', () => {
    const texts = EXAMPLES.flatMap(({ body, means, status }) => {
      const { error } = body as { error?: { message?: unknown } }
      return typeof error?.message === 'string' && means !== 'not_overflow' && status === 400
        ? [{ message: error.message, means }]
        : []
    })
    const envelopes: ((message: string) => unknown)[] = [
      (message) => ({ error: { message, type: 'invalid_request_error' } }),
      (message) => ({ message }),
      (message) => ({ error: message }),
      (message) => ({ detail: message }),
      (message) => message,
      (message) => [{ error: { code: 400, message, status: 'INVALID_ARGUMENT' } }],
      (message) => ({
        error: {
          message: 'Provider returned error',
          metadata: { raw: JSON.stringify({ error: { message } }) },
        },
      }),
      (message) => ({
        error: { message: `litellm.BadRequestError: XException - ${JSON.stringify({ error: { message } })}` },
      }),
      (message) => `Error code: 400 - ${JSON.stringify({ type: 'error', error: { message } })}`,
      (message) => `Error code: 400 - {'object': 'error', 'message': ${printed(message)}, 'param': None}`,
      (message) => ({
        error: {
          message: `litellm.BadRequestError: XException - ${printed({ error: { message } })}. Received`,
        },
      }),
      (message) => ({
        error: { message: 'Bad Request', cause: { responseBody: JSON.stringify({ message }) } },
      }),
      (message) => `{"message": "the first upstream is down"} and then ${JSON.stringify({ error: { message } })}`,
      (message) =>
        JSON.stringify({
          error: {
            message: JSON.stringify({ error: { metadata: { raw: JSON.stringify({ error: { message } }) } } }),
          },
        }),
      (message) => ({ ErrorCode: 'FROM_MODEL', OriginalMessage: JSON.stringify({ error: message }) }),
      (message) => ({ code: 11115, extError: { message, StatusCode: 400 } }),
      (message) => `event: error\ndata: ${JSON.stringify({ type: 'error', error: { message } })}\n\n`,
    ]
    for (const { message, means } of texts) {
      const bare = classify({ status: 400, body: { error: { message } } })?.overflow
      if (!bare) continue
      for (const wrap of envelopes) {
        const wrapped = classify({ status: 400, body: wrap(message) })?.overflow
        expect(wrapped, `${JSON.stringify(wrap(message))} of ${means}`).toEqual(bare)
      }
    }
  })

  it('ignores the error text of a tool inside an event', () => {
    const item = {
      type: 'mcp_call',
      error: { message: 'The prompt is too long: 9001 tokens > 8192 maximum' },
    }
    const told = [
      { type: 'response.output_item.done', item },
      { type: 'message', tool_response: { error: item.error } },
    ]
    for (const body of told) expect(classify({ status: 200, body })).toBeUndefined()
  })

  it('recognizes a code that names the context, in any spelling', () => {
    const codes = [
      'CONTEXT_LENGTH_EXCEEDED',
      'ContextWindowExceededError',
      'OutOfContextError',
      'maximum_context_length_failed',
      'context_size_limit_exceeded',
    ]
    for (const code of codes) {
      const classified = classify({ status: 400, body: { error: { code, message: 'Bad request' } } })
      expect(classified?.overflow, code).toEqual({ recovery: 'compress_only' })
    }
  })

  it('ignores a code that names a quota, an exhausted count, a file or a failure', () => {
    const refusals: [status: number, code: string, message: string][] = [
      [400, 'input_token_rate_limit_exceeded', 'Rate limit of 40000 input tokens per minute'],
      [403, 'token_limit_exceeded', 'Your daily token limit has been reached'],
      [400, 'token_limit_exceeded', 'Enqueued token limit of 90000 reached. Try again once batches are done.'],
      [429, 'token_quota_exceeded', 'Tokens per minute limit exceeded - too many tokens processed.'],
      [402, 'prompt_tokens_limit_exceeded', 'Prompt tokens limit exceeded: 9001 > 8192'],
      [429, 'input_token_limit_exceeded', 'Slow down'],
      [429, 'prompt_limit_reached', 'Too many prompts for today'],
      [400, 'input_too_large', 'The picture has 12 MB'],
      [400, 'image_input_too_large', 'Bad request'],
      [500, 'retrieve_context_failed', 'Bad request'],
      [500, 'prompt_failed', 'Bad request'],
    ]
    for (const [status, code, message] of refusals) {
      expect(classify({ status, body: { error: { code, message } } }), code).toBeUndefined()
    }
  })

  it('never takes the number in an error of MiniMax as a window', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 99_999 }), (status) => {
        const message = `invalid params, context window exceeds limit (${status})`
        expect(classify({ status: 400, body: { error: { message } } })?.overflow).toEqual({
          recovery: 'compress_only',
        })
      }),
    )
  })

  it.each([
    ['a string', (text: string) => text],
    ['a buffer', (text: string) => Buffer.from(text)],
  ])('is not misled by an error that quotes the request, which is %s', (_, sent) => {
    const quoted = "This model's maximum context length is 4096 tokens, but you sent 5000 tokens"
    const reply = { status: 400, body: { error: { message: `Invalid value for content: "${quoted}"` } } }
    const requestWith = (content: string) => () => sent(JSON.stringify({ messages: [{ content }] }))
    expect(classify(reply, { request: requestWith(quoted) })).toBeUndefined()
    const own = classify(reply, { request: requestWith('Hello') })?.overflow
    expect(own).toEqual({ recovery: 'shrink_context', limit: 4096, promptTokens: 5000 })
  })

  it('throws for no body', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 599 }), fc.jsonValue(), (status, body) => {
        classify({ status, body })
      }),
    )
    fc.assert(fc.property(fc.string({ unit: 'binary' }), (body) => void classify({ status: 400, body })))
  })

  it('handles 64 KB of any text on which a pattern could backtrack', () => {
    const pieces = [
      'the prompt ',
      '9 > ',
      'context ',
      'maximum context length is 8192 tokens ',
      '{"error":',
      '[',
      "'code': 'a' ",
      "{'a': ",
      "{'a': ('b', 1.5, None)} ",
      '{"a":1} ',
      '#/a/',
      '<a ',
      'number of a ',
      '\n ',
      '\nat a(',
      '1,000',
      'too ',
      '(1 + ',
      'requested 12 tokens ',
      'from 1 to 2 ',
      '[1, 2] ',
      'a',
      ' ',
      '\\',
      'input length exceeds the context ',
      '上下文',
    ]
    for (const piece of pieces) {
      const body = piece.repeat(Math.ceil(65_536 / piece.length))
      const reply = { status: 400, body: { error: { message: body } } }
      expect(() => classify(reply), piece).not.toThrow()
    }
  })
})
