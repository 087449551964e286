import { describe, expect, it, onTestFinished } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { lastSteps, whole } from '../support/reducers.ts'
import {
  createAgent,
  keyOf,
  numberIn,
  runShortened,
  SETTINGS,
  type Seen,
  type Setting,
  searcher,
  tableOf,
  verdictsOf,
} from '../support/shortened-agent.ts'
import type { AnswerEntry, Entry } from '../support/transcripts.ts'

const upTo = (count: number): number[] => Array.from({ length: count }, (_, at) => at + 1)

const LIMIT = 6
const shown = (seen: readonly Seen[]) => seen.map(({ iteration, reason }) => [iteration, reason].join(' ').trim())
const untilStop = (limit: number) => [...upTo(limit).map((at) => `${at}/${limit}`), `${limit}/${limit} max_iterations`]

/** All answers that follow one another as one answer: its calls, then all their results. */
function merged(history: readonly Entry[]): readonly Entry[] {
  const all: Entry[] = []
  let answer: AnswerEntry | undefined
  const results: Entry[] = []
  const flush = () => {
    if (answer) all.push(answer, ...results.splice(0))
    answer = undefined
  }
  for (const entry of history) {
    if (entry.kind === 'answer')
      answer = answer ? { ...answer, text: answer.text + entry.text, calls: [...answer.calls, ...entry.calls] } : entry
    else if (entry.kind === 'result') results.push(entry)
    else {
      flush()
      all.push(entry)
    }
  }
  flush()
  return all
}

/** Only some calls of each answer, with their results. */
const dropping =
  (keeps: (at: number) => boolean) =>
  (history: readonly Entry[]): readonly Entry[] => {
    const kept = new Set(
      history
        .flatMap((entry) => (entry.kind === 'answer' ? entry.calls.filter((_, at) => keeps(at)) : []))
        .map(({ id }) => id),
    )
    return history.flatMap((entry): readonly Entry[] => {
      if (entry.kind === 'answer') return [{ ...entry, calls: entry.calls.filter(({ id }) => kept.has(id)) }]
      return entry.kind === 'result' && !kept.has(entry.id) ? [] : [entry]
    })
  }

/** Other ids in place of those that came, drawn from the old id and from the place of the call in the request. */
const renaming =
  (name: (id: string, at: number) => string) =>
  (history: readonly Entry[]): readonly Entry[] => {
    const calls = history.flatMap((entry) => (entry.kind === 'answer' ? entry.calls : []))
    const names = new Map(calls.map(({ id }, at) => [id, name(id, at)]))
    const renamed = (id: string) => names.get(id) ?? id
    return history.map((entry) => {
      if (entry.kind === 'answer')
        return { ...entry, calls: entry.calls.map((call) => ({ ...call, id: renamed(call.id) })) }
      return entry.kind === 'result' ? { ...entry, id: renamed(entry.id) } : entry
    })
  }

const FORMS: Record<string, (history: readonly Entry[]) => readonly Entry[]> = {
  'joins all of them into one': merged,
  'keeps only the first call of each': dropping((at) => at === 0),
  'keeps only the last call of each': dropping((at) => at === 1),
  'gives its own ids to the calls': renaming((id) => `own_${id}`),
  'numbers the calls': renaming((_, at) => `call_${at}`),
  'says all ids in small letters without signs': renaming((id) =>
    id.replace(/\W|_/g, '').toLowerCase().padEnd(9, '0').slice(-9),
  ),
}

/** Checks something for every setting; all that fail are shown. */
async function inEach(check: (setting: Setting[1], title: string) => Promise<void>): Promise<void> {
  for (const [title, setting] of SETTINGS) await check(setting, title)
}

/** The verdicts on looping agents that change nothing, by their setting. */
const known = new Map<string, readonly string[]>()

describe('whole answers to different requests of one run', () => {
  it.each(Object.entries(FORMS))('are an iteration each where the client %s', async (_, form) => {
    const { url } = await startBeforeModel({ budget: { max_iterations: LIMIT } })
    await inEach(async (setting, title) => {
      const agent = createAgent({ url, ...setting, reducer: whole, key: keyOf({ calls: 2 }), form })
      const seen = await runShortened(agent, LIMIT + 3)
      expect.soft(shown(seen), `${title}\n${tableOf(seen)}`).toEqual(untilStop(LIMIT))
    })
  })

  it.each(Object.entries(FORMS))('show a loop where the client %s', async (name, form) => {
    const { url } = await startBeforeModel({})
    const shape = { calls: 2, loops: true }
    await inEach(async (setting, title) => {
      const options = { url, ...setting, reducer: whole }
      const control = () => runShortened(createAgent({ ...options, key: keyOf(shape), session: 'control' }), 12)
      const expected = known.get(title) ?? verdictsOf(await control())
      known.set(title, expected)
      const seen = await runShortened(createAgent({ ...options, key: keyOf(shape), form }), 12)
      expect(expected.join()).toContain('in place')
      // Where calls are missing, the others are another loop.
      if (name.includes('keeps only'))
        expect.soft(verdictsOf(seen).join(), `${title}\n${tableOf(seen)}`).toMatch(/warn.*block/)
      else expect.soft(verdictsOf(seen), `${title}\n${tableOf(seen)}`).toEqual(expected)
    })
  })

  it('are an iteration each, also those that only speak and that no human answers', async () => {
    let speaks = false
    const { url } = await startBeforeModel({ budget: { max_iterations: LIMIT } }, (request) => {
      speaks = !speaks
      return speaks || request.mustAnswer ? searcher(request) : { text: `I thought about it ${request.number} times.` }
    })
    await inEach(async (setting, title) => {
      speaks = false
      const agent = createAgent({ url, ...setting, reducer: whole, key: keyOf({}) })
      for (let at = 0; at < LIMIT + 1; at++) await agent.step()
      expect.soft(shown(agent.seen), `${title}\n${tableOf(agent.seen)}`).toEqual(untilStop(LIMIT))
    })
  })

  it('are known before the client has read the end of a stream', async () => {
    let release = () => {}
    const closesAfter = new Promise<void>((resolve) => {
      release = resolve
    })
    onTestFinished(() => release())
    const { url } = await startBeforeModel({}, async (request) => ({
      ...(await searcher(request)),
      ...(request.body.stream ? { closesAfter } : {}),
    }))
    await inEach(async (setting, title) => {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: lastSteps(1), leavesEarly: true })
      expect.soft((await runShortened(agent, 4)).map(numberIn), `${title}\n${tableOf(agent.seen)}`).toEqual(upTo(4))
    })
  })

  it('are known where they come compressed', async () => {
    const { url } = await startBeforeModel({}, async (request) => ({ ...(await searcher(request)), isGzip: true }))
    await inEach(async (setting, title) => {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: lastSteps(2) })
      expect.soft((await runShortened(agent, 6)).map(numberIn), `${title}\n${tableOf(agent.seen)}`).toEqual(upTo(6))
    })
  })
})
