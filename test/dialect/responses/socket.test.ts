import { describe, expect, it } from 'vitest'
import { responsesSocket as socket } from '../../../src/dialect/responses/socket.ts'

const bytes = (value: unknown) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value))
const create = (more: object = {}) => bytes({ type: 'response.create', model: 'gpt', ...more })

describe('a message of a client over a WebSocket', () => {
  it('asks for a response in its lane, with the headers that its metadata states', () => {
    const client_metadata = {
      session_id: 's-1',
      ws_request_header_traceparent: '00-1',
      x_ws_request_header_y: 'kept',
      count: 3,
      'bad name': 'x',
      umlaut: 'ä',
      list: ['x'],
    }
    expect(socket.readRequest(create({ stream_id: 'a', client_metadata }))).toEqual({
      lane: 'a',
      headers: [
        ...['session-id', 's-1'],
        ...['traceparent', '00-1'],
        ...['x-ws-request-header-y', 'kept'],
        'count',
        '3',
      ],
    })
    expect(socket.readRequest(create())).toEqual({ lane: '', headers: [] })
  })

  it.each(['[1]', '"text"', '{', '{"type":"response.cancel"}', ''])('asks for none: %j', (message) => {
    expect(socket.readRequest(bytes(message))).toBeUndefined()
  })

  it('that steers a response has its input and the response that it continues from', () => {
    const steer = bytes({ type: 'response.steer', previous_response_id: 'r1', input: [1.0] })
    expect(socket.steeredBy(steer)).toBe('r1')
    expect(socket.steeredBy(create({ previous_response_id: 'r1' }))).toBeUndefined()
    const steered = socket.steered(create({ input: 'before' }), steer)
    expect(JSON.parse(steered.toString())).toEqual({
      ...{ type: 'response.create', model: 'gpt', input: [1], previous_response_id: 'r1' },
    })
    const empty = socket.steered(create({ input: 'before' }), bytes({ type: 'response.steer' }))
    expect(JSON.parse(empty.toString())).toMatchObject({ input: null, previous_response_id: null })
  })
})

describe('an event of a provider over a WebSocket', () => {
  it.each([
    ['response.created', 'begin'],
    ['response.completed', 'end'],
    ['response.incomplete', 'end'],
    ['response.failed', 'end'],
    ['response.cancelled', 'end'],
    ['response.done', 'end'],
    ['response.completed.more', 'part'],
    ['response.output_text.delta', 'part'],
    ['response.steer.failed', 'unsteered'],
    ['response.steer.pending', 'unsteered'],
    ['response.steer.accepted', 'other'],
    ['ping', 'other'],
    ['error', 'error'],
  ])('of type %s is of the kind %s', (type, kind) => {
    expect(socket.readEvent(bytes({ type, stream_id: 'a' }))).toMatchObject({ kind, lane: 'a' })
    expect(socket.readEvent(bytes({ type }))).toMatchObject({ kind, lane: undefined })
  })

  it('that begins a response names it, where it has a name', () => {
    expect(socket.readEvent(bytes({ type: 'response.created', response: { id: 'r1' } }))).toMatchObject({ id: 'r1' })
    expect(socket.readEvent(bytes({ type: 'response.created', response: 'r1' }))).toMatchObject({ id: '' })
  })

  it.each([
    [{ status: 429 }, 429],
    [{ status_code: 404 }, 404],
    [{ status: 400, status_code: 404 }, 400],
    [{ status: '503' }, 503],
    [{ status: 399 }, 500],
    [{ status: 599 }, 599],
    [{ status: 600 }, 500],
    [{ status: 429.5 }, 500],
    [{}, 500],
  ])('that is an error has the status %j, as %i', (stated, status) => {
    expect(socket.readEvent(bytes({ type: 'error', ...stated }))).toMatchObject({ kind: 'error', status })
  })

  it('that is an error states headers', () => {
    const headers = { 'retry-after': 7, 'x-request-id': 'q' }
    expect(socket.readEvent(bytes({ type: 'error', headers }))).toMatchObject({
      headers: ['retry-after', '7', 'x-request-id', 'q'],
    })
  })

  it('goes into a lane by its name alone, and keeps its bytes where it is in it', () => {
    const event = bytes('{"type": "ping",  "n": 1.0}')
    expect(socket.inLane(event, 'a').toString()).toBe('{"type": "ping",  "n": 1.0,"stream_id":"a"}')
    expect(socket.inLane(event, '')).toBe(event)
    const other = socket.inLane(bytes({ type: 'ping', stream_id: 'a' }), 'b')
    expect(JSON.parse(other.toString())).toEqual({ type: 'ping', stream_id: 'b' })
    const text = bytes('no JSON')
    expect(socket.inLane(text, 'a')).toBe(text)
  })
})

describe('an error for a client over a WebSocket', () => {
  it('has its status, whatever its body is; an event that is an error stays as it is', () => {
    const shown = (body: string) => JSON.parse(socket.errorEvent(429, bytes(body)).toString()) as unknown
    expect(shown('{"error":{"message":"Slow down."}}')).toEqual({
      ...{ type: 'error', status: 429, error: { message: 'Slow down.' } },
    })
    expect(shown('Slow down.')).toEqual({ type: 'error', status: 429, error: { message: 'Slow down.' } })
    const event = bytes('{"type": "error", "status": 1.0}')
    expect(socket.errorEvent(429, event)).toBe(event)
  })
})
