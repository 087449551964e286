import { describe, expect, it } from 'vitest'
import { callModel } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { type ChatMessage, runaway, type Script } from '../support/provider.ts'

const SYSTEM: ChatMessage = { role: 'system', content: 'You are a research agent.' }
const user = (content: string): ChatMessage => ({ role: 'user', content })
const TASK = user('Find out everything.')

/** `count` steps of an agent that asks for something new each time, or for the same. */
function steps(count: number, query = (at: number) => `query ${at}`, id = (at: number) => `c${at}`): ChatMessage[] {
  return Array.from({ length: count }, (_, at): ChatMessage[] => [
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: id(at), function: { name: 'search', arguments: JSON.stringify({ query: query(at) }) } }],
    },
    { role: 'tool', tool_call_id: id(at), content: `found ${query(at)}` },
  ]).flat()
}

const NAMED = { headers: { 'x-governor-session': 's' } }
const NAMED_THREAD = { headers: { ...NAMED.headers, 'thread-id': 'one' } }

async function iterations(
  requests: readonly (readonly ChatMessage[])[],
  options: Parameters<typeof callModel>[2] = NAMED,
  config = {},
  script = runaway(),
) {
  const { url } = await startBoth(script, config)
  const seen: (string | null)[] = []
  for (const messages of requests)
    seen.push((await callModel(url, messages, options)).headers.get('x-governor-iteration'))
  return seen
}

const upTo = (count: number) => Array.from({ length: count }, (_, at) => `${at + 1}/300`)

describe.each([
  ['with a session id', NAMED],
  ['without a session id', {}],
])('a message that a harness puts at the end of each request, %s,', (_, options) => {
  const status = (at: number) => user(`Files changed so far: ${at}. Time: 10:0${at}.`)
  const requests = Array.from({ length: 8 }, (_, at) => [SYSTEM, TASK, ...steps(at), status(at)])

  it('begins no run, as the next request drops it and keeps the answer to it', async () => {
    const seen = await iterations(requests, options)
    // Without an id, the second request is the first one that is remembered.
    expect(seen.slice(1)).toEqual(options === NAMED ? upTo(8).slice(1) : upTo(7))
  })

  it('does not hide a loop', async () => {
    const { url } = await startBoth(runaway())
    const loops: (string | null)[] = []
    for (let at = 0; at < 8; at++) {
      const messages = [SYSTEM, TASK, ...steps(at, () => 'same'), status(at)]
      loops.push((await callModel(url, messages, options)).headers.get('x-governor-loop'))
    }
    expect(loops.some((loop) => loop?.startsWith('repetition'))).toBe(true)
  })
})

describe.each([
  ['with a session id', NAMED],
  ['without a session id', {}],
])('the words of a harness, %s,', (_, options) => {
  it('change no number where they stand at the end of each request and are known', async () => {
    const context = user('<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nNothing runs.\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>')
    const requests = Array.from({ length: 6 }, (_, at) => [SYSTEM, TASK, ...steps(at), context])
    expect(await iterations(requests, options)).toEqual(upTo(6))
  })

  it('begin no run where they interrupt an agent that repeats itself, and the loop goes on', async () => {
    const interrupt = user('<system-interrupt reason="loop">\nThat was the same call five times.\n</system-interrupt>')
    const { url } = await startBoth(runaway())
    const loops: (string | null)[] = []
    const same = () => 'same'
    for (let at = 0; at < 7; at++) {
      const messages = [SYSTEM, TASK, ...steps(Math.min(at, 5), same), ...(at < 5 ? [] : [interrupt])]
      const later = steps(at, same).slice(10)
      const { headers } = await callModel(url, [...messages, ...later], options)
      expect(headers.get('x-governor-iteration')).toBe(`${at + 1}/300`)
      loops.push(headers.get('x-governor-loop'))
    }
    expect(loops).toEqual([null, null, null, 'repetition;count=3', null, 'repetition;count=2', null])
  })
})

describe.each([
  ['the same id each time', () => 'call_0'],
  ['no id', () => ''],
])('an agent that makes the same call in each step, with %s,', (_, id) => {
  const status = (at: number) => user(`Time: 10:0${at}.`)
  const clock = (at: number): ChatMessage => ({ role: 'system', content: `You are a research agent. It is 10:0${at}.` })
  const same = (count: number) => steps(count, () => 'same', id)
  const last = (count: number) => same(Math.min(count, 3))

  it.each<[string, (at: number) => ChatMessage[]]>([
    ['ends in a message that the next one drops', (at) => [SYSTEM, TASK, ...same(at), status(at)]],
    ['shows the last steps and such a message', (at) => [SYSTEM, TASK, ...last(at), status(at)]],
    ['shows the last steps after another system text', (at) => [clock(at), TASK, ...last(at)]],
  ])('has each step counted where its request %s', async (_title, request) => {
    const requests = Array.from({ length: 9 }, (_, at) => request(at))
    expect(await iterations(requests)).toEqual(upTo(9))
  })

  it('has a request counted once that is sent again in other bytes after an error', async () => {
    let isDown = false
    const work = runaway()
    const { url } = await startBoth((received, number) => (isDown ? { status: 429 } : work(received, number)))
    const seen: unknown[] = []
    for (let at = 0; at < 6; at++)
      for (isDown of [true, false]) {
        const messages = [SYSTEM, TASK, ...same(at), user(`Time: 10:0${at}, ${isDown}.`)]
        seen.push((await callModel(url, messages, NAMED)).headers.get('x-governor-iteration'))
      }
    expect(seen).toEqual(upTo(6).flatMap((one) => [one, one]))
  })
})

describe('a message that a harness puts at the end of some requests', () => {
  it('seems to begin a run, which goes on as soon as the message is gone', async () => {
    const requests = [
      ...Array.from({ length: 5 }, (_, at) => [SYSTEM, TASK, ...steps(at)]),
      [SYSTEM, TASK, ...steps(5), user('You have been at it for a while.')],
      [SYSTEM, TASK, ...steps(6)],
      [SYSTEM, TASK, ...steps(7)],
    ]
    expect(await iterations(requests)).toEqual([...upTo(5), '1/300', '7/300', '8/300'])
  })
})

describe('what a human says', () => {
  it('begins a run in the middle of another', async () => {
    const spoken = [SYSTEM, TASK, ...steps(4), user('Stop that, do the other thing.')]
    const requests = [[SYSTEM, TASK, ...steps(4)], spoken, [...spoken, ...steps(1, (at) => `other ${at}`)]]
    expect(await iterations(requests)).toEqual(['5/300', '1/300', '2/300'])
  })

  it('begins a run although the client replaced the words at the end of the history', async () => {
    const done: ChatMessage[] = [SYSTEM, TASK, ...steps(3), { role: 'assistant', content: 'Done.' }]
    const requests = [[...done.slice(0, -1)], [...done, user('And now?')], [...done, user('Now the tests.')]]
    expect(await iterations(requests)).toEqual(['4/300', '1/300', '1/300'])
  })

  it('begins a run after an answer, although the client drops what stood at the end of each request before', async () => {
    const done: ChatMessage[] = [SYSTEM, TASK, ...steps(2), { role: 'assistant', content: 'Done.' }]
    const requests = [
      [SYSTEM, TASK, user('Status 0.')],
      [SYSTEM, TASK, ...steps(1), user('Status 1.')],
      [SYSTEM, TASK, ...steps(2), user('Status 2.')],
      [...done, user('Now the tests.')],
    ]
    expect(await iterations(requests)).toEqual(['1/300', '2/300', '3/300', '1/300'])
  })
})

describe('a compaction keeps the count of the run', () => {
  const before = Array.from({ length: 8 }, (_, at) => [SYSTEM, TASK, ...steps(at)])
  const tail = steps(8).slice(-6)

  it.each<[string, ChatMessage[]]>([
    ['where unknown words stand before answers that the run knows', [SYSTEM, TASK, user('It went so: …'), ...tail]],
    ['where the first message is a summary', [SYSTEM, user('Find out everything. So far: …'), ...tail]],
    [
      'of opencode',
      [
        SYSTEM,
        user('What did we do so far?'),
        { role: 'assistant', content: '## Goal\nFind out everything.' },
        user('Continue if you have next steps, or stop and ask for clarification if you are unsure how to proceed.'),
      ],
    ],
  ])('%s', async (_, compacted) => {
    const next = [...compacted, ...steps(1, () => 'the next one')]
    expect(await iterations([...before, compacted, next])).toEqual(upTo(10))
  })
})

it('a compaction that the harness asks for in unknown words keeps the count of the run', async () => {
  const asked = [SYSTEM, TASK, ...steps(5), user('Now sum all of it up.')]
  const summary = user('This session is being continued from a previous conversation. So far: …')
  const requests = [
    ...Array.from({ length: 6 }, (_, at) => [SYSTEM, TASK, ...steps(at)]),
    asked,
    [SYSTEM, summary],
    [SYSTEM, summary, ...steps(1, () => 'the next one')],
  ]
  expect(await iterations(requests)).toEqual([...upTo(6), '1/300', '8/300', '9/300'])
})

/** A model that answers `ask` with a summary, and calls a tool otherwise. */
function summarizing(ask: ChatMessage): Script {
  const work = runaway()
  return (request, number) =>
    request.json.messages.at(-1)?.content === ask.content ? { text: 'So far: …' } : work(request, number)
}

const LATER = ['7/300', '8/300', '9/300']

it.each([
  ['unknown words', user('Now sum all of it up.'), ['1/300', '8/300', '9/300']],
  [
    'known words',
    user('You are about to run out of context. Create a handoff summary for the model that will resume this task.'),
    LATER,
  ],
  ['the words of Claude Code', user('CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nSum it up.'), LATER],
  ['the words of opencode', user('Provide a detailed prompt for continuing our conversation above.'), LATER],
])('a summary that a harness asks for in %s, and puts behind the prompt, keeps the count', async (_, ask, expected) => {
  const summary = user('The conversation so far has been compacted to free up context. So far: …')
  const rest = [SYSTEM, TASK, summary, user('<system-reminder>Go on.</system-reminder>')]
  const requests = [
    ...Array.from({ length: 6 }, (_one, at) => [SYSTEM, TASK, ...steps(at)]),
    [SYSTEM, TASK, ...steps(5), ask],
    rest,
    [
      ...rest,
      ...steps(
        1,
        () => 'the next one',
        () => 'd',
      ),
    ],
  ]
  for (const options of [NAMED, NAMED_THREAD])
    expect(await iterations(requests, options, {}, summarizing(ask))).toEqual([...upTo(6), ...expected])
})

it('a summary that qwen-code puts in place of the history, with an answer of its own, keeps the count', async () => {
  const ask = user('You are the component that summarizes a conversation when its context window is about to overflow.')
  const summary = '<state_snapshot>So far: …</state_snapshot>\n\nResume the prior task using the summary above.'
  const file = 'Recently accessed file (full current content embedded):\n\n## a.txt\n\nalpha'
  const rest = [SYSTEM, user(summary), user(file), { role: 'assistant', content: 'Got it.' }]
  const requests = [
    ...Array.from({ length: 4 }, (_one, at) => [SYSTEM, TASK, ...steps(at)]),
    [SYSTEM, TASK, ...steps(3), ask],
    rest,
    [
      ...rest,
      ...steps(
        1,
        () => 'the next one',
        () => 'd',
      ),
    ],
  ]
  expect(await iterations(requests, NAMED, {}, summarizing(ask))).toEqual(upTo(7))
})

describe('conversations without a session id', () => {
  const sessionsOf = async (conversations: readonly (readonly ChatMessage[])[]) => {
    const { url } = await startBoth(runaway())
    const ids: (string | null)[] = []
    for (const messages of conversations) ids.push((await callModel(url, messages)).headers.get('x-governor-session'))
    return ids
  }
  const GREETING: ChatMessage = { role: 'assistant', content: 'Hi! How can I help you?' }
  const PAIR: ChatMessage[] = [user('Say hello.'), { role: 'assistant', content: 'Hello.' }]

  it.each([
    ['a greeting', [GREETING]],
    ['an example pair', PAIR],
  ])('that share %s are different sessions', async (_, shared) => {
    const customers = ['a', 'b', 'c'].map((name) => [SYSTEM, ...shared, user(`I am ${name}.`)])
    const ids = await sessionsOf([...customers, ...customers.map((begin) => [...begin, ...steps(1)])])
    expect(ids.slice(0, 3)).toEqual([null, null, null])
    expect(new Set(ids.slice(3)).size).toBe(3)
  })

  it('keep their session from the first answer on, whatever a human says later', async () => {
    const chat: ChatMessage[] = [SYSTEM, user('Hi.')]
    const answered: ChatMessage[] = [...chat, { role: 'assistant', content: 'Hello.' }, user('Work.')]
    const worked = [...answered, ...steps(2)]
    const more: ChatMessage[] = [...worked, { role: 'assistant', content: 'Done.' }, user('More.')]
    const ids = await sessionsOf([chat, answered, worked, more, [...more, ...steps(1, () => 'more')]])
    expect(ids[0]).toBeNull()
    expect(ids[1]).not.toBeNull()
    expect(new Set(ids.slice(1)).size).toBe(1)
  })

  it('with equal first requests are never stopped for one another, however many there are', async () => {
    const begin = [SYSTEM, ...PAIR, user('Hi.')]
    const seen = await iterations(
      Array.from({ length: 40 }, () => begin),
      {},
      { budget: { max_iterations: 3 } },
    )
    expect(new Set(seen)).toEqual(new Set(['1/3']))
  })
})

describe('a thread that begins with the history of another', () => {
  const child = { headers: { 'session-id': 's', 'thread-id': 'child' } }
  const parent = { headers: { 'session-id': 's', 'thread-id': 'parent' } }

  it('counts its own iterations only, and inherits no loop', async () => {
    const { url } = await startBoth(runaway())
    const history = [SYSTEM, TASK, ...steps(7, () => 'same')]
    for (let at = 0; at < 7; at++) await callModel(url, [SYSTEM, TASK, ...steps(at, () => 'same')], parent)
    const seen: unknown[] = []
    for (let at = 0; at < 3; at++) {
      const { headers } = await callModel(url, [...history, ...steps(at, (n) => `own ${n}`)], child)
      seen.push([headers.get('x-governor-iteration'), headers.get('x-governor-loop')])
    }
    expect(seen).toEqual([
      ['1/300', null],
      ['2/300', null],
      ['3/300', null],
    ])
    const { headers } = await callModel(url, [...history, ...steps(1, () => 'mine')], parent)
    expect(headers.get('x-governor-iteration')).toBe('9/300')
  })
})

describe('words of a human that begin like a text of a harness', () => {
  it.each([
    'Provide a detailed summary of our conversation above. Then fix the bug.',
    'Please continue on whatever approach you think is suitable. Mind the tests.',
    'What did we do so far? List the files.',
  ])('begin a run: %s', async (words) => {
    expect(
      await iterations([
        [SYSTEM, TASK, ...steps(3)],
        [SYSTEM, TASK, ...steps(3), user(words)],
      ]),
    ).toEqual(['4/300', '1/300'])
  })
})

it('a harness that states its work in the first message and ignores the end of its run begins none, with a named thread', async () => {
  const script: Script = () => ({ calls: [{ id: '', name: 'search', arguments: { query: 'more' } }] })
  const requests = Array.from({ length: 9 }, (_, at) => {
    const newest = steps(Math.min(at, 6), undefined, () => '').slice(-4)
    return [SYSTEM, user(`Find it. Requests so far: ${at}.`), ...newest]
  })
  const seen = await iterations(requests, NAMED_THREAD, { budget: { max_iterations: 6 } }, script)
  expect(seen).toEqual(['1/6', '2/6', '3/6', '4/6', '5/6', '6/6', '6/6', '6/6', '6/6'])
})

it('a summary that a harness asks for before a reminder, and puts in place of the history, keeps the count', async () => {
  const ask = user('CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nSum it up.')
  const reminder = user('<system-reminder>Keep your list of tasks.</system-reminder>')
  const summary = user('This session is being continued from a previous conversation. So far: …')
  const work = runaway()
  const script: Script = (request, number) =>
    request.json.messages.at(-2)?.content === ask.content ? { text: 'So far: …' } : work(request, number)
  const requests = [
    ...Array.from({ length: 6 }, (_, at) => [SYSTEM, TASK, ...steps(at)]),
    [SYSTEM, TASK, ...steps(5), ask, reminder],
    [SYSTEM, summary],
    [SYSTEM, summary, ...steps(1, () => 'the next one')],
  ]
  expect(await iterations(requests, NAMED, {}, script)).toEqual([...upTo(6), ...LATER])
})
