import { describe, expect, it } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import type { Store } from '../../src/store/store.ts'
import { ask, listed } from '../support/admin.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'
import { createStore, fillStore } from '../support/stores.ts'
import { captureTerminal } from '../support/terminal.ts'

const COUNT = 10_000

interface Page {
  readonly sessions: readonly { readonly id: string; readonly risk: number }[]
  readonly next: string | null
}

/** A Governor with so many sessions that it takes many looks at the store to list them. */
async function startWithMany() {
  const store = createStore(2 * COUNT)
  const running = await startBoth(runaway(), { budget: { max_iterations: 100 } }, { store })
  await runAgent(running.url, START, { headers: { 'x-governor-session': 'first' }, max: 3 })
  await fillStore(store, COUNT)
  return running
}

async function allPages(url: string, query: string): Promise<Page['sessions']> {
  const sessions: Page['sessions'][number][] = []
  let next: string | null = ''
  do {
    const { json } = await ask(url, `/governor/sessions?${query}${next ? `&cursor=${next}` : ''}`)
    const page = json as Page
    sessions.push(...page.sessions)
    next = page.next
  } while (next)
  return sessions
}

describe('a list of sessions', () => {
  it.each([true, false])('says whether it is complete (%s)', async (complete) => {
    const store = createStore()
    const all: Store['all'] = (ids, missed) => {
      if (!complete) missed?.()
      return store.all(ids)
    }
    const { url } = await startBoth(runaway(), {}, { store: { ...store, all } })
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' }, max: 1 })
    const { json } = await ask(url, '/governor/sessions')
    expect(json).toMatchObject({ complete, sessions: [{ iteration: 1 }] })
    const terminal = captureTerminal()
    expect(await run(['sessions', '--url', url], terminal)).toBe(0)
    if (complete) expect(terminal.complaints).toBe('')
    else expect(terminal.complaints).toContain('sessions may be missing')
  })
})

describe('10,000 sessions', () => {
  it('are all on the pages of one list, each once and by risk, while others ask for lists of their own', async () => {
    const { url } = await startWithMany()
    const all = allPages(url, 'limit=200')
    // A table that is open asks for its first page again and again.
    for (let at = 0; at < 5; at++) await listed(url, '?limit=50')
    const sessions = await all
    expect(sessions).toHaveLength(COUNT)
    expect(new Set(sessions.map(({ id }) => id)).size).toBe(COUNT)
    const risks = sessions.map(({ risk }) => risk)
    expect(risks).toEqual(risks.toSorted((a, b) => b - a))
  })

  it('are filtered before they are cut into pages', async () => {
    const { url } = await startWithMany()
    const near = await allPages(url, 'state=near_limit&limit=200')
    expect(near.length).toBeGreaterThan(1_000)
    expect(near.every(({ risk }) => risk >= 0.8)).toBe(true)
    expect(await allPages(url, 'id=smany-77&limit=10')).toHaveLength(111)
    expect(await listed(url, '?name=many-77')).toHaveLength(1)
  })

  it('are listed by several clients at once, each with all of them', async () => {
    const { url } = await startWithMany()
    const pages = await Promise.all(
      Array.from({ length: 8 }, async (_, at) => (await ask(url, `/governor/sessions?limit=${1 + at}`)).json as Page),
    )
    const first = pages[0]?.sessions[0]?.id
    expect(pages.map(({ sessions }) => [sessions.length, sessions[0]?.id])).toEqual(
      pages.map((_, at) => [1 + at, first]),
    )
  })
})
