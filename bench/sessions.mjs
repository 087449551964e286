/** Requests as bytes that are ready to be written, numbered anew for every session. */
import { bodyOf, conversationOf, SIZES, STAMP } from './bodies.mjs'
import { SITUATIONS } from './situations.mjs'

/** How many growing requests a session sends. */
const REQUESTS_PER_SESSION = 5

/** What an SDK sends besides. */
const HEADERS = {
  accept: 'application/json',
  'content-type': 'application/json',
  'user-agent': 'OpenAI/JS 6.49.0',
  'x-stainless-lang': 'js',
  'x-stainless-package-version': '6.49.0',
  'x-stainless-os': 'Linux',
  'x-stainless-arch': 'x64',
  'x-stainless-runtime': 'node',
  'x-stainless-runtime-version': 'v20.20.2',
  'x-stainless-retry-count': '0',
  authorization: 'Bearer sk-bench-0123456789abcdefghijklmnopqrstuvwxyz',
}

/** Counts on for as long as the process lives, so that no session is sent twice. */
let sessions = 0

const conversations = new Map()

function knownConversation(bytes, options) {
  const key = JSON.stringify([bytes, options])
  const known = conversations.get(key) ?? conversationOf(bytes, options)
  conversations.set(key, known)
  return known
}

function stampsIn(bytes) {
  const places = []
  for (let at = bytes.indexOf(STAMP); at !== -1; at = bytes.indexOf(STAMP, at + STAMP.length)) places.push(at)
  return places
}

function requestOf(body, headers) {
  const fields = { ...HEADERS, ...headers, 'content-length': Buffer.byteLength(body) }
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`)
  const bytes = Buffer.from(`POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n${lines.join('')}\r\n${body}`)
  return { bytes, stamps: stampsIn(bytes) }
}

function stamp({ bytes, stamps }, number) {
  const digits = Buffer.from(String(number).padStart(STAMP.length, '0'))
  for (const at of stamps) digits.copy(bytes, at)
}

/**
 * An agent that sends `requests` one after the other, and then begins a new session with them. `isBetweenSessions` is
 * true of it once the last of them was asked for.
 */
function agentOf(requests) {
  let at = 0
  const next = () => {
    if (at === 0) {
      sessions++
      for (const request of requests) stamp(request, sessions)
    }
    const { bytes } = requests[at]
    at = (at + 1) % requests.length
    return bytes
  }
  next.isBetweenSessions = () => at === 0
  return next
}

/**
 * An agent whose requests are of about the size named `size`, as a function that returns the next one's bytes. These
 * are overwritten when its next session begins: a request must be answered before the next one is asked for.
 */
export function createAgent({ size, situation, headers = {}, isStream = false }) {
  const { isCold = false, repeated = [0], headers: situational = () => ({}) } = SITUATIONS[situation]
  const conversation = knownConversation(SIZES[size], { isStream })
  const count = conversation.turns.length
  const shortest = isCold ? count : Math.max(1, count - REQUESTS_PER_SESSION + 1)
  const requests = []
  for (let turns = shortest; turns <= count; turns++) {
    for (const calls of repeated) {
      const body = bodyOf(conversation, turns, calls)
      requests.push(requestOf(body, { ...headers, ...situational(turns + 1) }))
    }
  }
  return agentOf(requests)
}

/** The bodies of one conversation that grows to `bytes` bytes in `turns` turns. */
export function growingBodies(bytes, turns) {
  const conversation = conversationOf(bytes, { turns })
  return Array.from({ length: turns }, (_, index) => bodyOf(conversation, index + 1))
}

/** An agent that sends the whole of a growing conversation, request by request. */
export function createGrowingAgent(bytes, turns, headers) {
  return agentOf(growingBodies(bytes, turns).map((body) => requestOf(body, headers)))
}

/** The smallest request that a proxy is asked for whether it is there; no conversation that Governor would count. */
export function pingRequest(headers) {
  return requestOf('{"model":"gpt-bench","messages":[{"role":"user","content":"ping"}]}', headers).bytes
}
