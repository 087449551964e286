/** Requests as bytes that are ready to be written, numbered anew for every session. */
import { asMessages, bodyOf, conversationOf, SIZES, STAMP, WHOLE } from './bodies.mjs'
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

/** A request to Chat Completions with the body; with `api` `messages` the same to Anthropic's Messages. */
function requestOf(chat, headers, api) {
  const [path, body] = api === 'messages' ? ['/v1/messages', asMessages(chat)] : ['/v1/chat/completions', chat]
  const fields = { ...HEADERS, ...headers, 'content-length': Buffer.byteLength(body) }
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`)
  const bytes = Buffer.from(`POST ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\n${lines.join('')}\r\n${body}`)
  return { bytes, stamps: stampsIn(bytes) }
}

function stamp({ bytes, stamps }, number) {
  const digits = Buffer.from(String(number).padStart(STAMP.length, '0'))
  for (const at of stamps) digits.copy(bytes, at)
}

/**
 * An agent that sends its sessions, each of which is a list of requests, one after the other, and then begins anew with
 * them under other numbers: `next` returns the next request's bytes, `requests` is how many there are.
 */
function agentOf(sessionsOfAgent) {
  const requests = sessionsOfAgent.flatMap((session) => session.map(({ bytes }, at) => ({ bytes, at, session })))
  let place = 0
  const next = () => {
    const { bytes, at, session } = requests[place]
    if (at === 0) {
      sessions++
      for (const request of session) stamp(request, sessions)
    }
    place = (place + 1) % requests.length
    return bytes
  }
  return { next, requests: requests.length }
}

/** The requests of one session of about the size named `size`. */
function sessionOf({ size, situation, isStream = false, ...options }) {
  const { isCold = false, repeated = [0], headers: situational = () => ({}) } = SITUATIONS[situation]
  const isTalk = size === 'talk'
  const conversation = knownConversation(SIZES[isTalk ? '1KB' : size], { isStream, isTalk })
  const count = conversation.turns.length
  const shortest = isCold ? count : Math.max(1, count - REQUESTS_PER_SESSION + 1)
  const requests = []
  for (let turns = shortest; turns <= count; turns++) {
    for (const calls of repeated) {
      const body = bodyOf(conversation, turns, calls)
      requests.push(requestOf(body, { ...options.headers, ...situational(turns + 1) }, options.api))
    }
  }
  return requests
}

/** The requests of a whole conversation, from its first step to its last. */
function wholeOf({ bytes, turns }, { headers, api }) {
  const conversation = conversationOf(bytes, { turns })
  return Array.from({ length: turns }, (_, index) => requestOf(bodyOf(conversation, index + 1), headers, api))
}

const wholeAgents = new Map()

/**
 * Agent `index` of `count`, whose requests are of the kind `size`. The bytes that its `next` returns are overwritten when
 * that session begins again: a request must be answered before the next one is asked for.
 */
export function createAgent({ index = 0, count = 1, ...options }) {
  const { size, headers, api } = options
  const own = WHOLE[size]?.filter((_, at) => at % count === index)
  if (!own) return agentOf([sessionOf(options)])
  const key = JSON.stringify([size, index, count, headers, api])
  const agent = wholeAgents.get(key) ?? agentOf(own.map((conversation) => wholeOf(conversation, options)))
  wholeAgents.set(key, agent)
  return agent
}

/** The smallest request that a proxy is asked for whether it is there; no conversation that Governor would count. */
export function pingRequest(headers, api) {
  return requestOf('{"model":"gpt-bench","messages":[{"role":"user","content":"ping"}]}', headers, api).bytes
}
