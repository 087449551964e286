/** Responses over WebSocket: each message is one event, and the events of a `stream_id` are a lane of their own. */
import { isObject, type Json, objectIn, parseObject, textOf } from '../../core/json-object.ts'
import { applyEdits, setMember } from '../../json/edit.ts'
import { decode, kindAt, type Member, member, members, root } from '../../json/scan.ts'
import type { SocketEvent, SocketForm } from '../dialect.ts'
import { stringIn } from '../shared/request.ts'

export const CREATE = 'response.create'

const LANE = 'stream_id'

/** Returns the members of a message; none if it is no JSON object. */
function fieldsOf(message: Buffer): Member[] {
  try {
    const object = root(message)
    return kindAt(message, object) === 'object' ? members(message, object) : []
  } catch {
    return []
  }
}

function memberOf(message: Buffer, fields: readonly Member[], key: string): unknown {
  const value = member(fields, key)?.value
  return value && decode(message, value)
}

/** Returns raw headers of an object's members that a header can hold. `nameOf`: the header's name. */
function headersIn(object: unknown, nameOf: (key: string) => string): string[] {
  const headers: string[] = []
  for (const [key, value] of isObject(object) ? Object.entries(object) : []) {
    const text = typeof value === 'number' ? String(value) : value
    const name = nameOf(key)
    if (typeof text === 'string' && /^[\w-]+$/.test(name) && /^[\x20-\x7e]*$/.test(text)) headers.push(name, text)
  }
  return headers
}

/** A client states here what it would state in headers over HTTP: `session_id`, `ws_request_header_traceparent`. */
const METADATA = 'client_metadata'

const ENDS = /^response\.(?:completed|incomplete|failed|cancelled|done)$/
const STEER = 'response.steer'

function kindOfEvent(type: string): SocketEvent['kind'] {
  if (type === 'error') return 'error'
  if (type === 'response.created') return 'begin'
  if (ENDS.test(type)) return 'end'
  if (type.startsWith(STEER)) return /\.(?:failed|pending)$/.test(type) ? 'unsteered' : 'other'
  return type.startsWith('response.') ? 'part' : 'other'
}

/** The members of a request that a message which steers its response has in their place. */
const STEERABLE = ['previous_response_id', 'input']

export const responsesSocket: SocketForm = {
  readRequest(message) {
    const fields = fieldsOf(message)
    if (stringIn(message, fields, 'type') !== CREATE) return undefined
    const nameOf = (key: string) => key.replace(/^ws_request_header_/, '').replaceAll('_', '-')
    return {
      lane: stringIn(message, fields, LANE),
      headers: headersIn(memberOf(message, fields, METADATA), nameOf),
    }
  },
  readEvent(message) {
    const fields = fieldsOf(message)
    const kind = kindOfEvent(stringIn(message, fields, 'type'))
    const lane = member(fields, LANE) && stringIn(message, fields, LANE)
    if (kind === 'begin') {
      const { id } = objectIn({ response: memberOf(message, fields, 'response') }, 'response')
      return { kind, lane, id: textOf(id) }
    }
    if (kind !== 'error') return { kind, lane }
    const stated = Number(memberOf(message, fields, 'status') ?? memberOf(message, fields, 'status_code'))
    const status = Number.isInteger(stated) && stated >= 400 && stated <= 599 ? stated : 500
    return { kind, lane, status, headers: headersIn(memberOf(message, fields, 'headers'), (key) => key) }
  },
  steeredBy(message) {
    const fields = fieldsOf(message)
    return stringIn(message, fields, 'type') === STEER ? stringIn(message, fields, 'previous_response_id') : undefined
  },
  steered(request, message) {
    const [fields, values] = [fieldsOf(request), fieldsOf(message)]
    const edits = STEERABLE.map((key) => {
      const { start = 0, end = 0 } = member(values, key)?.value ?? {}
      return setMember(root(request), fields, key, message.toString('utf8', start, end) || 'null')
    })
    return applyEdits(request, edits)
  },
  inLane(event, lane) {
    const fields = fieldsOf(event)
    if (fields.length === 0 || stringIn(event, fields, LANE) === lane) return event
    return applyEdits(event, [setMember(root(event), fields, LANE, JSON.stringify(lane))])
  },
  errorEvent(status, body) {
    const error: Json = parseObject(body.toString()) ?? { error: { message: body.toString() } }
    // Clients take an error without its status for an event that they do not know, and wait.
    return error['type'] === 'error' ? body : Buffer.from(JSON.stringify({ type: 'error', status, ...error }))
  },
}
