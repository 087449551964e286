/** How long the event loop is away while a fast provider streams the last answer of a run in small pieces. */
import { join } from 'node:path'
import { lengthsOutside } from '../stalls.mjs'
import { spread } from '../statistics.mjs'

/** Characters of the answer. */
const SIZE = 400_000
const WARMUP_REQUESTS = 3
const GAUGE = join(import.meta.dirname, '..', 'subjects', 'loop-delay.mjs')

/** How an answer begins, the piece that then comes again and again, and how it ends; only the last is not held. */
const ANSWERS = {
  reasoning: ['<think>', 'well', '</think>It is 42.'],
  'white space': [' ', '\n\n\n\n', 'It is 42.'],
  'nothing but reasoning': ['<think>', 'well', '.'],
  text: ['So: ', 'well', '.'],
}

const REQUEST = {
  model: 'gpt-bench',
  stream: true,
  tools: [{ type: 'function', function: { name: 'f' } }],
  messages: [
    { role: 'user', content: 'Go.' },
    {
      role: 'assistant',
      content: 'Yes.',
      tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
    },
    { role: 'tool', tool_call_id: 'c', content: 'ok' },
  ],
}

/** Sends a request beyond its limit, as somebody of whom nothing is known yet. */
async function send(process, who) {
  const headers = {
    authorization: `Bearer ${who}`,
    'content-type': 'application/json',
    'x-governor-max-iterations': '1',
  }
  const url = `http://127.0.0.1:${process.port}/v1/chat/completions`
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(REQUEST) })
  await response.arrayBuffer()
  const verdict = response.headers.get('x-governor-verdict')
  if (verdict !== 'stop') throw new Error(`Governor was to decide "stop" and decided "${verdict}"`)
}

/** By how the answer begins: the longest time away in ms, by round. */
export async function run(bench) {
  const figures = {}
  const subject = bench.subjects.find(({ name }) => name === 'governor')
  if (!subject) return figures
  const process = await bench.fleet.startSubject(subject, {
    nodeFlags: ['--import', GAUGE],
    hasChannel: true,
  })
  try {
    for (const [name, [first, piece, last]] of Object.entries(ANSWERS)) {
      await bench.fleet.answer({ kind: 'flood', first, piece, last, count: SIZE / piece.length })
      for (let one = 0; one < WARMUP_REQUESTS; one++) await send(process, `${name}-${one}`)
      figures[name] = []
      for (let round = 0; round < bench.rounds; round++) {
        const { result: turns, stalls } = await bench.fleet.watch(async () => {
          await process.ask('begin')
          await send(process, `${name}-round-${round}`)
          return process.ask('end')
        })
        figures[name].push(Math.max(...lengthsOutside(stalls, turns)))
      }
    }
  } finally {
    await process.stop()
  }
  return figures
}

export function table(figures) {
  return {
    title: `A last answer of ${SIZE / 1000} KB from a fast provider, in pieces of four characters`,
    columns: ['much of', 'event loop away, ms'],
    rows: Object.entries(figures).map(([name, away]) => [name, spread(away)]),
  }
}
