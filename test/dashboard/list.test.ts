/** The list of sessions as a tool: filters, orders and keys, in a browser. */
import { afterAll, describe, expect, it } from 'vitest'
import { firstSession } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { closeBrowser, isWithoutBrowser, openPage, PICTURES, picture } from '../support/browser.ts'
import { startBoth } from '../support/governor.ts'
import { runaway, type Script } from '../support/provider.ts'
import { createStore, fillStore } from '../support/stores.ts'

const named = (name: string, more: object = {}) => ({ headers: { 'x-governor-session': name, ...more } })
/** Circles, answers or fails, as its model is called. */
const mixed: Script = ({ json }, number) => {
  if (json.model === 'broken') return { status: 401, body: { error: { message: 'no' } } }
  if (json.model === 'quick') return { text: 'Done.' }
  if (json.tool_choice === 'none') return { text: 'Enough.' }
  return { calls: [{ name: 'read_file', arguments: { path: json.model === 'circle' ? 'a' : number } }] }
}

async function startMixed() {
  const { url } = await startBoth(mixed, { budget: { max_iterations: 20 }, loop_guard: { mode: 'warn' } })
  const model = (name: string) => ({ body: { model: name } })
  await runAgent(url, START, { ...named('looper'), max: 8, ...model('circle') })
  await runAgent(url, START, { ...named('worker b'), max: 3, ...model('long') })
  await runAgent(url, START, { ...named('worker a'), max: 2, ...model('long') })
  await runAgent(url, START, { ...named('asker'), max: 2, ...model('quick') })
  await callModel(url, START, { ...named('failer'), ...model('broken') }).catch(() => undefined)
  return url
}

describe.skipIf(isWithoutBrowser)('the list of sessions in a browser', () => {
  afterAll(closeBrowser)

  it('has a button for each group with its count, which shows that group alone, and finds states', async () => {
    const { page, problems } = await openPage(`${await startMixed()}/governor/`)
    const filters = page.getByRole('group', { name: 'Show' })
    const links = page.locator('#list a')
    await links.nth(4).waitFor()
    expect(await filters.getByRole('button').allTextContents()).toEqual([
      '5 in all',
      '1 needs you',
      '1 failed',
      '2 working',
      '1 waiting',
    ])
    await picture(page, 'filters')
    await filters.getByRole('button', { name: '2 working' }).click()
    await filters.getByText('2 of 5 match').waitFor()
    expect((await links.allTextContents()).sort()).toEqual(['worker a', 'worker b'])
    await filters.getByRole('button', { name: '2 working' }).click()
    await links.nth(4).waitFor()
    await page.getByLabel('Search').fill('looping')
    await filters.getByText('1 of 5 match').waitFor()
    expect(await links.allTextContents()).toEqual(['looper'])
    expect(problems).toEqual([])
  })

  it('sorts over all groups by its titles, in both directions, and by risk again', async () => {
    const { page, problems } = await openPage(`${await startMixed()}/governor/`)
    const links = page.locator('#list a')
    await links.nth(4).waitFor()
    const groups = page.locator('#list .group')
    expect(await groups.allTextContents()).toEqual(['Need you', 'Failed', 'Working', 'Waiting'])
    const title = page.getByRole('columnheader', { name: 'Session' })
    const names = ['asker', 'failer', 'looper', 'worker a', 'worker b']
    await title.getByRole('button').click()
    await expect.poll(() => links.allTextContents()).toEqual(names)
    expect(await title.getAttribute('aria-sort')).toBe('ascending')
    expect(await groups.count()).toBe(0)
    await title.getByRole('button').click()
    await expect.poll(() => links.allTextContents()).toEqual(names.toReversed())
    expect(await title.getAttribute('aria-sort')).toBe('descending')
    await title.getByRole('button').click()
    await expect.poll(() => groups.count()).toBe(4)
    await page.getByRole('columnheader', { name: 'Limit' }).getByRole('button').click()
    await expect.poll(() => links.first().textContent()).toBe('looper')
    expect(problems).toEqual([])
  })

  it('asks to stop the session for which a key was pressed, and no other one that is opened after it', async () => {
    const { url } = await startBoth(runaway())
    for (const name of ['one', 'two']) await runAgent(url, START, { ...named(name), max: 1 })
    const { page } = await openPage(`${url}/governor/`)
    const link = (name: string) => page.locator('#list a', { hasText: name })
    const title = page.getByRole('dialog').getByRole('heading')
    await page.route(/sessions\/s/, (route) => route.abort())
    await link('one').focus()
    const failed = page.waitForEvent('requestfailed')
    await page.keyboard.press('x')
    await failed
    await page.locator('#detail').getByText("Governor can't be reached").waitFor()
    await page.unroute(/sessions\/s/)
    await link('two').click()
    await page.getByRole('button', { name: 'Stop with an answer' }).waitFor()
    // An answer to a later key, so that one to the earlier key would be there.
    await page.keyboard.press('?')
    await page.getByRole('dialog', { name: 'Keys' }).waitFor()
    expect(await title.allTextContents()).toEqual(['Keys'])
    await page.keyboard.press('Escape')
    await page.getByRole('dialog', { name: 'Keys' }).waitFor({ state: 'detached' })
    await link('one').focus()
    await page.keyboard.press('x')
    await title.getByText('Stop one?').waitFor()
  })

  it('knows the keys of governor top, and gives the focus back to the row of a session that is closed', async () => {
    const url = await startMixed()
    const { page, problems } = await openPage(`${url}/governor/`)
    const focused = () => page.evaluate('document.activeElement.textContent')
    await page.locator('#list a').nth(4).waitFor()
    await page.keyboard.press('?')
    await page.getByRole('dialog', { name: 'Keys' }).getByText('stop it with an answer').waitFor()
    await picture(page, 'keys')
    await page.keyboard.press('Escape')
    await page.keyboard.press('/')
    await page.keyboard.type('worker x?')
    expect(await page.getByLabel('Search').inputValue()).toBe('worker x?')
    await page.getByLabel('Search').fill('')
    await page.locator('#list a').nth(4).waitFor()
    await page.getByRole('link', { name: 'worker b' }).focus()
    await page.keyboard.press('Enter')
    await page.locator('#detail .facts').waitFor()
    await page.keyboard.press('Escape')
    await page.locator('#detail').waitFor({ state: 'detached' })
    await expect.poll(focused).toBe('worker b')
    await page.keyboard.press('x')
    await page.getByRole('dialog').getByText('Stop worker b?').waitFor()
    await page.keyboard.press('Escape')
    await page.keyboard.press('e')
    await page.getByRole('dialog').getByText('Extend worker b').waitFor()
    await page.keyboard.press('Escape')
    await page.locator('#detail .close').click()
    await expect.poll(focused).toBe('worker b')
    expect((await firstSession(url)).stopping).toBe(false)
    expect(problems).toEqual([])
  })

  it.each([1, 30, 1_000])('cuts nothing on any screen, with %i sessions', async (count) => {
    const store = createStore(1_200)
    const { url } = await startBoth(mixed, { budget: { max_iterations: 100 } }, { store })
    await runAgent(url, START, { ...named('one'), max: 3 })
    if (count > 1) await fillStore(store, count)
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.getByText(`${count} in all`).waitFor()
    for (const width of [1440, 1000, 390]) {
      await page.setViewportSize({ width, height: 900 })
      expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width)
      // Names may be too long for any column; all else stands there whole.
      const shown = '#list .number, #list .limit, #list th, #filters button, #search'
      const cut = await page.evaluate(`[...document.querySelectorAll('${shown}')]
        .filter((one) => one.clientWidth > 0 && (one.scrollWidth > one.clientWidth + 1 || one.clientWidth < 20))
        .map((one) => one.outerHTML.slice(0, 120))`)
      expect(cut, `${width} px`).toEqual([])
      // Each row is one line, with a width for each of its cells.
      const widths = await page.evaluate(`[...document.querySelectorAll('#list tr:not(.group)')].map((row) => [
        getComputedStyle(row).gridTemplateColumns.split(' ').length,
        [...row.children].filter((cell) => cell.clientWidth > 0).length,
      ].join(' of '))`)
      expect(new Set(widths as string[]), `${width} px`).toEqual(new Set([width === 390 ? '3 of 3' : '6 of 6']))
      for (const colorScheme of PICTURES ? (['light', 'dark'] as const) : []) {
        await page.emulateMedia({ colorScheme })
        await picture(page, `list-${count}-${width}-${colorScheme}`)
      }
    }
    expect(problems).toEqual([])
  })

  it.each([0.004_321, 21, 1_234.5, 98_765])(
    'cuts no amount of dollars in a narrow list, and breaks no unit: %d for a call',
    async (dollars) => {
      const models = [{ model: '*', price: { input: dollars * 10_000, output: 0 } }]
      const { url } = await startBoth(mixed, { budget: { day: { max_cost_usd: dollars * 20 } }, models })
      await runAgent(url, START, { ...named('one'), max: 15 })
      const { page } = await openPage(`${url}/governor/#one`)
      await page.locator('#detail .facts').waitFor()
      for (const width of [1440, 1000, 390]) {
        await page.setViewportSize({ width, height: 900 })
        if (width === 390) await page.goto(`${url}/governor/`)
        await page.locator('#list .limit').last().getByText('today').waitFor()
        const cut = await page.evaluate(`[...document.querySelectorAll('#list td.number, #list td.limit')]
        .filter((one) => one.clientWidth > 0 && one.scrollWidth > one.clientWidth)
        .map((one) => one.textContent)`)
        expect(cut, `${width} px`).toEqual([])
        // The last characters of a rate, `/min`, stand on one line.
        const broken = await page.evaluate(`[...document.querySelectorAll('#list td.number small')]
        .filter((one) => one.clientWidth > 0 && one.textContent.endsWith('/min'))
        .map((one) => {
          const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT)
          const tops = []
          for (let node = texts.nextNode(); node; node = texts.nextNode())
            for (let at = 0; at < node.length; at++) {
              const range = document.createRange()
              range.setStart(node, at)
              range.setEnd(node, at + 1)
              tops.push(range.getBoundingClientRect().top)
            }
          return new Set(tops.slice(-4)).size
        })`)
        expect(broken, `${width} px`).toEqual([1])
        await picture(page, `dollars-${dollars}-${width}`)
      }
    },
  )

  it('says of a session with several agents whose end and answer it shows', async () => {
    const { url } = await startBoth(mixed, { budget: { max_iterations: 2 } })
    const agent = (name: string) => named('team', { 'thread-id': name })
    await runAgent(url, START, agent('reviewer'))
    await runAgent(url, START, { ...agent('writer'), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/#team`)
    await page.locator('.say').getByText('reviewer: Ended: tool limit reached').waitFor()
    await page.getByRole('region', { name: 'Final answer' }).getByText('of reviewer').waitFor()
    expect(problems).toEqual([])
  })
})
