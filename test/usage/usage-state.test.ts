import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { createMemoryStore } from '../../src/store/memory.ts'
import { createLedger, placeOf } from '../../src/usage/ledger.ts'
import { createUsageState } from '../../src/usage/usage-state.ts'
import { dayAt } from '../support/day-limit.ts'
import { createStore } from '../support/stores.ts'

const NOON = Date.parse('2026-11-27T12:00:00Z')
function folder(): string {
  const made = mkdtempSync(join(tmpdir(), 'governor-state-'))
  onTestFinished(() => {
    chmodSync(made, 0o700)
    rmSync(made, { recursive: true, force: true })
  })
  return made
}

/** What one process has: its sums, and the file that it shares. */
function startOne(path: string, name: string, clock = { now: NOON }, store = createStore()) {
  const said: string[] = []
  const ledger = createLedger(store, () => clock.now, name)
  const file = createUsageState({
    path,
    ledger,
    failed: (problem) => said.push(problem),
    setAside: (as) => said.push(`aside ${as}`),
  })
  ledger.keepWith(file.look, () => {})
  return {
    ...file,
    ledger,
    said,
    spend: (cost: number) => ledger.settle(dayAt(clock.now), { cost }, undefined),
    cost: async (at = clock.now) => (await ledger.read(dayAt(at))).used.cost ?? 0,
  }
}

describe('the file of sums', () => {
  it('makes several processes count as one, whatever each spends and whichever ends, in any order', async () => {
    const step = fc.record({
      who: fc.integer({ min: 0, max: 2 }),
      does: fc.constantFrom('spend', 'write', 'restart', 'kill'),
      cents: fc.integer({ min: 1, max: 500 }),
    })
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 25 }), async (steps) => {
        const path = join(folder(), 'usage.state')
        let made = 0
        const begin = () => startOne(path, `n${made++}`)
        const all = [begin(), begin(), begin()]
        const unwritten = [0, 0, 0]
        let kept = 0
        for (const { who, does, cents } of steps) {
          const one = all[who]
          if (!one) continue
          if (does === 'spend') {
            await one.spend(cents / 100)
            unwritten[who] = (unwritten[who] ?? 0) + cents
            continue
          }
          if (does === 'write') await one.open()
          if (does === 'restart') await one.close()
          if (does !== 'kill') kept += unwritten[who] ?? 0
          unwritten[who] = 0
          if (does !== 'write') all[who] = begin()
        }
        for (const [who, one] of all.entries()) {
          await one.open()
          kept += unwritten[who] ?? 0
        }
        const late = begin()
        await late.open()
        expect(await late.cost()).toBeCloseTo(kept / 100, 6)
        expect(all.flatMap(({ said }) => said)).toEqual([])
      }),
      { numRuns: 20 },
    )
  })

  it('shows each process what others have spent at its next look', async () => {
    const path = join(folder(), 'usage.state')
    const [one, other] = [startOne(path, 'one'), startOne(path, 'other')]
    await other.open()
    await one.spend(3)
    await one.open()
    expect(await other.cost()).toBe(3)
  })

  it.each([
    ['torn', '{"governor":"usage.state","accounts":{"day'],
    ['of another program', '{"accounts":[]}'],
    ['empty', ''],
  ])('is set aside where it is %s, and that is said once', async (_, text) => {
    const here = folder()
    const path = join(here, 'usage.state')
    writeFileSync(path, text)
    const one = startOne(path, 'one')
    await one.open()
    await one.spend(2)
    await one.open()
    expect(one.said).toHaveLength(1)
    expect(readdirSync(here).filter((name) => name.includes('unreadable'))).toHaveLength(1)
    const next = startOne(path, 'next')
    await next.open()
    expect(await next.cost()).toBe(2)
  })

  it('carries along what a newer version wrote', async () => {
    const path = join(folder(), 'usage.state')
    const one = startOne(path, 'one')
    await one.spend(2)
    await one.close()
    const tree = JSON.parse(readFileSync(path, 'utf8'))
    const [name = ''] = Object.keys(tree.accounts)
    tree.version = 9
    tree.news = 1
    tree.accounts[name].account.extra = { kept: true }
    tree.accounts[name].account['p:ended'].used.colours = 7
    writeFileSync(path, JSON.stringify(tree))
    const next = startOne(path, 'next')
    await next.spend(1)
    await next.close()
    const after = JSON.parse(readFileSync(path, 'utf8'))
    expect(after).toMatchObject({ version: 9, news: 1 })
    expect(after.accounts[name].account).toMatchObject({ extra: { kept: true } })
    expect(after.accounts[name].account['p:ended'].used).toEqual({ cost: 3, colours: 7 })
  })

  it('keeps the sums of a day that a clock leaves and comes back to', async () => {
    const path = join(folder(), 'usage.state')
    const clock = { now: NOON }
    const one = startOne(path, 'one', clock)
    await one.spend(5)
    clock.now -= 86_400_000
    await one.spend(1)
    await one.open()
    clock.now = NOON
    expect(await one.cost()).toBe(5)
    const next = startOne(path, 'next', clock)
    await next.open()
    expect(await next.cost()).toBe(5)
    expect(await next.cost(NOON - 86_400_000)).toBe(1)
  })

  it('keeps the sums of thousands of keys, also where the store in memory has room for fewer', async () => {
    const path = join(folder(), 'usage.state')
    const small = () => createMemoryStore({ max: 10, ttl: 60_000, maxBytes: 1_000_000 })
    const day = dayAt(NOON)
    const places = Array.from({ length: 5_000 }, (_, at) =>
      placeOf({ ...day.rule, per: 'key' }, day.period, `key ${at}`),
    )
    const costs = async ({ ledger }: ReturnType<typeof startOne>) => {
      const all = await Promise.all(places.map((place) => ledger.read(place)))
      return new Set(all.map(({ used }) => used.cost))
    }
    const one = startOne(path, 'one', undefined, small())
    for (const place of places) await one.ledger.settle(place, { cost: 2 }, undefined)
    expect(await costs(one)).toEqual(new Set([2]))
    await one.close()
    const next = startOne(path, 'next', undefined, small())
    await next.open()
    expect(await costs(next)).toEqual(new Set([2]))
    for (const place of places) await next.ledger.settle(place, { cost: 1 }, undefined)
    expect(await costs(next)).toEqual(new Set([3]))
    await next.close()
    const last = startOne(path, 'last')
    await last.open()
    expect(await costs(last)).toEqual(new Set([3]))
  })

  it('lets other requests have their turn while it reads the sums of thousands of keys', async () => {
    const path = join(folder(), 'usage.state')
    const day = dayAt(NOON)
    const [one, two] = [startOne(path, 'one'), startOne(path, 'two')]
    for (let at = 0; at < 20_000; at++)
      await one.ledger.settle(placeOf({ ...day.rule, per: 'key' }, day.period, `key ${at}`), { cost: 2 }, undefined)
    await one.open()
    let merged = 0
    let most = 0
    const merge: typeof two.ledger.merge = (...of) => {
      most = Math.max(most, ++merged)
      return two.ledger.merge(...of)
    }
    const other = () => {
      merged = 0
      next = setImmediate(other)
    }
    let next = setImmediate(other)
    const ledger = { ...two.ledger, merge }
    await createUsageState({ path, ledger, failed: () => {}, setAside: () => {} }).look()
    clearImmediate(next)
    expect(most).toBeGreaterThan(0)
    expect(most).toBeLessThanOrEqual(1_000)
  })

  it('keeps the limit that an operator has set last, also where the clock was set back in between', async () => {
    const path = join(folder(), 'usage.state')
    const clock = { now: NOON }
    const [one, two] = [startOne(path, 'one', clock), startOne(path, 'two', clock)]
    await one.ledger.setLimits(dayAt(clock.now), { cost: 200 })
    await one.open()
    await two.open()
    clock.now -= 3_600_000
    await two.ledger.setLimits(dayAt(clock.now), { cost: 300 })
    for (const each of [two, one, two]) await each.open()
    for (const { ledger } of [one, two]) expect((await ledger.read(dayAt(clock.now))).limits.cost).toBe(300)
  })

  it('is done without on a disk that takes no file, which is said once', async () => {
    const blocked = join(folder(), 'file')
    writeFileSync(blocked, '')
    // A folder that can't be made, for any user.
    const one = startOne(join(blocked, 'usage.state'), 'one')
    await one.open()
    await one.spend(4)
    await one.close()
    expect(one.said).toHaveLength(1)
    expect(await one.cost()).toBe(4)
  })

  it('is written once the disk takes files again, although nothing more is used', async () => {
    const blocked = join(folder(), 'file')
    writeFileSync(blocked, '')
    const path = join(blocked, 'usage.state')
    const one = startOne(path, 'one')
    onTestFinished(() => one.close())
    await one.spend(4)
    await one.open()
    expect(one.said).toHaveLength(1)
    rmSync(blocked)
    await expect.poll(() => existsSync(path), { timeout: 10_000 }).toBe(true)
    const next = startOne(path, 'next')
    await next.open()
    expect(await next.cost()).toBe(4)
  })

  it.each([
    ['two seconds ago', -2],
    ['an hour from now', 3_600],
  ])('takes the last sums of a process although another one was killed with the lock, %s', async (_, seconds) => {
    const path = join(folder(), 'usage.state')
    writeFileSync(`${path}.lock`, '')
    const time = Date.now() / 1_000 + seconds
    utimesSync(`${path}.lock`, time, time)
    const one = startOne(path, 'one')
    await one.spend(4)
    await one.close()
    expect(one.said).toEqual([])
    const next = startOne(path, 'next')
    await next.open()
    expect(await next.cost()).toBe(4)
  })
})
