/** What a counter and its meter need besides their rows and the place that counts: nothing. This one counts images. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { DEFAULT_TEXTS, noticeFor, tierOf } from '../../src/core/budget/budget-notices.ts'
import {
  amountsBy,
  isExhausted,
  LIMITS,
  type LimitName,
  METERS,
  type Meter,
  type MeterRow,
  metersOf,
} from '../../src/core/budget/meters.ts'
import { COUNTERS, type CounterName, type CounterRow } from '../../src/core/counters.ts'
import { countRequest } from '../../src/core/session/count-request.ts'
import { mergeSessions } from '../../src/core/session/merge.ts'
import { NEW_SESSION, type Session, usedSinceReset } from '../../src/core/session/session.ts'
import { noteAnswer } from '../../src/core/session/transitions.ts'
import { detailOf } from '../../src/ops/sessions/view.ts'
import { sessionKey } from '../../src/store/store.ts'
import { createSessionForm } from '../../src/store/stored-session.ts'
import { createJournal } from '../../src/telemetry/journal.ts'
import { requestFacts, requestOf, system, user } from './transcript.ts'

const NAME = 'images' as CounterName & LimitName
const NOW = 61_000

const counter: CounterRow = {
  ofAnswer: (usage) => ('images' in usage ? Number(usage.images) : 0),
  join: 'growth',
  journal: NAME,
}
const meter: MeterRow = {
  word: 'Image',
  unit: 'images',
  format: METERS.iterations.format,
  counters: [NAME],
  isCounted: true,
}

const TABLES = [COUNTERS, METERS] as Record<string, object>[]

// Test files share their modules.
beforeAll(() => {
  Object.assign(COUNTERS, { [NAME]: counter })
  Object.assign(METERS, { [NAME]: meter })
  ;(LIMITS as LimitName[]).push(NAME)
})
afterAll(() => {
  for (const table of TABLES) delete table[NAME]
  ;(LIMITS as LimitName[]).pop()
})

const usage = (images: number) => ({ input: 100, output: 10, estimated: false, images })
const facts = requestFacts([system('You are an agent.'), user('Draw a cat.')])
const counted = { fingerprint: facts.fingerprint, thread: '' }
const answered = (session: Session, images: number) => {
  const iteration = { askedAt: 1_000, endedAt: NOW, status: 200, verdict: 'allow' as const }
  const outcome = { ...iteration, tier: undefined, loop: undefined, overflow: undefined }
  return noteAnswer(session, counted, { usage: usage(images), ids: [], requestBytes: 400, iteration: outcome })
}
const begun = () => {
  const max = (amount: number) => amountsBy((name) => (name === NAME ? amount : 0))
  return countRequest(NEW_SESSION, requestOf(facts, { limits: { run: max(10), session: max(40) } })).session
}

it('is counted of each answer in the run, the session, the minute and the iteration', () => {
  const session = answered(answered(begun(), 3), 4)
  const images = { [NAME]: 7 }
  expect(session).toMatchObject({
    counts: images,
    threads: [{ run: { counts: images } }],
    record: { iterations: [{ counts: images }], minutes: [{ counts: images }] },
  })
})

it('stands in the API beside the other meters, of the run and of the session', () => {
  const listed = { key: sessionKey('0123456789abcdef', 'mine'), session: answered(begun(), 7) }
  const detail = detailOf(listed, { now: NOW, seesNames: true }, () => undefined)
  expect(detail.meters).toContainEqual({ name: NAME, used: 7, max: 40 })
  expect(detail.threads[0]?.meters).toContainEqual({ name: NAME, used: 7, max: 10 })
  expect(detail).toMatchObject({ risk: 0.7, risk_by: NAME })
})

it('is told about in notices, and used up at its limit', () => {
  const session = answered(begun(), 9)
  const meters = metersOf(
    usedSinceReset(session, NOW),
    amountsBy((name) => (name === NAME ? 10 : 0)),
  )
  const [images] = meters
  expect(meters).toEqual([{ name: NAME, used: 9, max: 10 }])
  const thresholds = { caution: 0.7, warning: 0.9, adaptive: false, style: 'tiers' as const }
  expect(images && tierOf(images, thresholds)).toBe('warning')
  expect(images && noticeFor('warning', images, DEFAULT_TEXTS)).toContain('Image 9/10')
  expect(isExhausted({ ...images, used: 10 } as Meter)).toBe(false)
})

it('is stored in Redis, and joined after an outage: each replica has counted other answers', () => {
  const form = createSessionForm()
  const stored = (session: Session) => form.read(JSON.parse(JSON.stringify(form.write(session))))
  const base = stored(answered(begun(), 1))
  const [here, there] = [stored(answered(base, 2)), stored(answered(base, 4))]
  expect(there.record?.iterations[0]?.counts).toMatchObject({ [NAME]: 5 })
  const joined = mergeSessions(base, here, there)
  expect(joined).toMatchObject({ counts: { [NAME]: 7 }, threads: [{ run: { counts: { [NAME]: 7 } } }] })
})

it('stands in the lines of the journal', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'governor-journal-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const path = join(folder, 'usage.jsonl')
  const after = () => () => undefined
  const journal = createJournal({ path, now: () => NOW, after, emit: () => undefined })
  const whose = { session: 's', apiId: 's', client: 'agent', model: 'm', upstream: 'openai', thread: 1 }
  const place = { isNewRun: true, iteration: 1, counts: {} }
  journal.record({ kind: 'answered', ...whose, ...place, usage: usage(3) })
  await journal.close()
  expect(JSON.parse(readFileSync(path, 'utf8'))).toMatchObject({ runs: 1, iterations: 1, calls: 0, [NAME]: 3 })
})
