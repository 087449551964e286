/** How long the event loop is away for one request that was made to keep it: small in gzip, and hard to read. */
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { lengthsOutside } from '../stalls.mjs'
import { spread } from '../statistics.mjs'
import { peakMemory, residentMemory } from '../usage.mjs'

const SIZE = 8_000_000
/** Compiled code is what production runs. */
const WARMUP_REQUESTS = 5
const MB = 1024 * 1024
const GAUGE = join(import.meta.dirname, '..', 'subjects', 'loop-delay.mjs')

const repeated = (text) => text.repeat(SIZE / text.length)
const listed = (textOf, length) =>
  Array.from({ length: SIZE / length }, (_, at) => textOf(String(at).padStart(6, '0'))).join(',')
const call = (id, args) =>
  `{"role":"assistant","content":null,"tool_calls":[{"id":"${id}","type":"function","function":{"name":"f","arguments":${args}}}]}`
const result = (id, content) => `{"role":"tool","tool_call_id":"${id}","content":${content}}`
const called = (args) => `${call('c', args)},${result('c', '"ok"')}`
const asked = (content) => `{"role":"user","content":${content}},{"role":"assistant","content":"a"}`

/** The messages of a conversation, by what there is much of in it. */
const MESSAGES = {
  'brackets in arguments': () => called(JSON.stringify(repeated('['))),
  'lists in arguments': () => called(JSON.stringify(`[${repeated('[],')}0]`)),
  'keys in arguments': () => called(JSON.stringify(`{${listed((at) => `"${at}":0`, 10)}}`)),
  'lists in a message': () => asked(`[${repeated('[],')}0]`),
  'parts of a message': () => asked(`[${repeated('{"type":"text","text":"a"},')}0]`),
  'escapes in a message': () => asked(`"${repeated('\\\\')}"`),
  messages: () => listed((at) => asked(`"${at}"`), 66),
  'calls, one after the other': () => listed((at) => `${call(at, '"{}"')},${result(at, `"${at}"`)}`, 180),
  'calls of one response': () =>
    call('c', '"{}"').replace(
      /\{"id".*\}\}/,
      listed((at) => `{"id":"${at}","function":{"name":"f","arguments":"{}"}}`, 64),
    ),
}

const bodyOf = (messages) =>
  gzipSync(
    `{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[${messages},{"role":"user","content":"b"}]}`,
  )

function subjectOf(bench) {
  return bench.subjects.find(({ name }) => name === 'governor')
}

/** Sends the body as somebody of whom nothing is known yet. */
async function send(process, body, who) {
  const headers = {
    authorization: `Bearer ${who}`,
    'content-type': 'application/json',
    'content-encoding': 'gzip',
  }
  const url = `http://127.0.0.1:${process.port}/v1/chat/completions`
  await fetch(url, { method: 'POST', headers, body }).then((response) => response.arrayBuffer())
}

async function measureOne(bench, process, body) {
  for (let one = 0; one < WARMUP_REQUESTS; one++) await send(process, body, `warm-up-${one}`)
  const before = residentMemory(process.pids())
  const { result: turns, stalls } = await bench.fleet.watch(async () => {
    await process.ask('begin')
    await send(process, body, 'measured')
    return process.ask('end')
  })
  return {
    away: Math.max(...lengthsOutside(stalls, turns)),
    peak: (peakMemory(process.pids()) - before) / MB,
  }
}

/** By what there is much of: `away` in ms and `peak` in MB, by round. Each in a process of its own, as peaks stay. */
export async function run(bench) {
  await bench.fleet.answer({ kind: 'json' })
  const figures = {}
  const subject = subjectOf(bench)
  if (!subject) return figures
  for (const [name, messagesOf] of Object.entries(MESSAGES)) {
    const body = bodyOf(messagesOf())
    figures[name] = { bytes: body.length, away: [], peak: [] }
    for (let round = 0; round < bench.rounds; round++) {
      const process = await bench.fleet.startSubject(subject, {
        nodeFlags: ['--import', GAUGE],
        hasChannel: true,
      })
      try {
        const { away, peak } = await measureOne(bench, process, body)
        figures[name].away.push(away)
        figures[name].peak.push(peak)
      } finally {
        await process.stop()
      }
    }
  }
  return figures
}

export function table(figures) {
  return {
    title: `One request to Governor that is ${SIZE / 1_000_000} MB without its gzip`,
    columns: ['much of', 'bytes sent', 'event loop away, ms', 'memory, MB'],
    rows: Object.entries(figures).map(([name, { bytes, away, peak }]) => [
      name,
      String(bytes),
      spread(away),
      spread(peak),
    ]),
  }
}
