import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { gzipSync } from 'node:zlib'
import axe from 'axe-core'
import type { Page } from 'playwright-core'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { ignore } from '../../src/core/thrown.ts'
import { act, ask, firstSession } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { closeBrowser, isWithoutBrowser, openPage, PICTURES, picture } from '../support/browser.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway, type Script, serve } from '../support/provider.ts'
import { createStore, fillStore } from '../support/stores.ts'

/** What a scheme changes are colours, which axe looks at in both of them. */
const SCHEMES = PICTURES ? (['light', 'dark'] as const) : (['light'] as const)

const named = (name: string) => ({ headers: { 'x-governor-session': name } })
/** A network before a server: once it is cut, nothing comes over the connections that there are, nor do they end. */
async function openLine(url: string): Promise<{ readonly url: string; cut(): void }> {
  const { port, hostname } = new URL(url)
  const sockets = new Set<Socket>()
  const server = createServer((client) => {
    const upstream = connect(Number(port), hostname)
    client.pipe(upstream).pipe(client)
    for (const one of [client, upstream]) sockets.add(one.on('error', ignore))
  })
  onTestFinished(() => {
    server.close()
    for (const one of sockets) one.destroy()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    cut() {
      for (const one of sockets) one.unpipe().pause()
    },
  }
}
const stuck: Script = ({ json }) =>
  json.tool_choice === 'none' || !json.tools
    ? { text: 'I could not find out.' }
    : { calls: [{ name: 'read_file', arguments: { path: 'a' } }] }

describe('the files of the live page', () => {
  it('contain no data, load nothing from elsewhere, and take less than 150 KB', async () => {
    const { url } = await startBoth(runaway())
    let size = 0
    for (const file of ['', 'page.js', 'page.css']) {
      const { status, headers, text } = await ask(url, `/governor/${file}`)
      expect(status, file).toBe(200)
      expect(headers['content-security-policy']).not.toContain('unsafe')
      expect(headers['content-security-policy']).toContain("frame-ancestors 'none'")
      expect(text.replaceAll(/http:\/\/www\.w3\.org\/[\w/]+/g, '')).not.toMatch(/https?:\/\//)
      size += gzipSync(text).length
    }
    expect(size).toBeLessThan(150_000)
    expect((await ask(url, '/governor')).headers.location).toBe('/governor/')
  })

  it('are sent with status 401 if the client may not read sessions', async () => {
    const { url } = await startBoth(runaway(), { ops: { admin_token: 'secret', trust_loopback: false } })
    const { status, text } = await ask(url, '/governor/')
    expect([status, text.includes('admin token')]).toEqual([401, true])
  })
})

describe.skipIf(isWithoutBrowser)('the live page in a browser', () => {
  afterAll(closeBrowser)

  it('pauses all agents behind a confirmation, shows in red what is paused, and resumes it', async () => {
    const { url } = await startBoth(stuck)
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.getByRole('button', { name: 'Pause all' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByRole('button', { name: 'Cancel' }).click()
    expect((await ask(url, '/governor/pause')).json).toEqual({ paused: [] })
    await page.getByRole('button', { name: 'Pause all' }).click()
    await dialog.getByRole('button', { name: 'Pause all' }).click()
    await page.getByRole('alert').getByText('PAUSED: all agents').waitFor()
    await page.locator('#list .chip.bad').getByText('paused').waitFor()
    expect(await page.title()).toContain('PAUSED')
    expect((await callModel(url, START, named('one'))).governor).toMatchObject({ terminal_reason: 'paused' })
    await picture(page, 'paused')
    await ask(url, '/governor/pause', {
      method: 'POST',
      body: { session: 'one', reason: 'it spends a lot '.repeat(9) },
    })
    await page.setViewportSize({ width: 390, height: 800 })
    const resume = page.getByRole('button', { name: 'Resume' })
    await resume.nth(1).waitFor()
    for (const button of await resume.all()) expect((await button.boundingBox())?.height).toBeLessThan(50)
    expect((await ask(url, '/governor/resume', { method: 'POST', body: { session: 'one' } })).status).toBe(200)
    await resume.nth(1).waitFor({ state: 'detached' })
    await resume.click()
    await page.locator('.paused').waitFor({ state: 'detached' })
    expect((await ask(url, '/governor/pause')).json).toEqual({ paused: [] })
    expect(problems).toEqual([])
  })

  it.each(SCHEMES)('shows a run in a loop, live, and steers it (%s)', async (colorScheme) => {
    const { url } = await startBoth(stuck, { budget: { max_iterations: 40 }, loop_guard: { mode: 'warn' } })
    const { page, problems } = await openPage(`${url}/governor/`, { colorScheme })
    await page.getByText('No sessions yet').waitFor()
    await page.getByText(`OPENAI_BASE_URL=${url}/v1`).waitFor()
    await picture(page, `empty-${colorScheme}`)
    const first = await runAgent(url, START, { ...named('one'), max: 8 })
    await page.locator('#list .going_round').waitFor()
    await page.locator('#list').getByText('8 of 40').waitFor()
    const line = page.locator('#list tr').filter({ hasText: 'looping' })
    expect(await line.textContent()).toMatch(/^onelooping.*read_file ×7.*8 of 40/)
    await page.locator('.stat.alert').getByText('needs you').waitFor()
    expect(await page.title()).toMatch(/^\(1\) 1 at work · .*1 needs you · .* today · Governor$/)
    await picture(page, `list-${colorScheme}`)
    await page.getByRole('link', { name: 'one' }).click()
    await page.getByText('read_file 7 times with equal arguments and results').waitFor()
    expect(await page.locator('#timeline tbody tr:not(.governor)').count()).toBe(8)
    await page.locator('.governor').getByText('You appear to be repeating').first().waitFor()
    await picture(page, `detail-${colorScheme}`)

    const button = (name: string) => page.getByRole('button', { name, exact: true })
    await button('Extend 40 → 50').click()
    await page.getByLabel('Iterations 40 →').fill('60')
    await button('Extend').click()
    await page.locator('.facts').getByText('8 of 60').waitFor()
    await button('Only watch for loops').click()
    await page.getByText('Loops are only counted').waitFor()
    await button('End loops again').click()
    await page.getByText('Loops are ended again').waitFor()
    await button('Copy curl').click()
    await page.getByText('curl -H').waitFor()
    await button('Stop with an answer').click()
    const dialog = page.getByRole('dialog')
    await picture(page, `confirm-${colorScheme}`)
    await dialog.getByRole('button', { name: 'Cancel' }).click()
    expect((await firstSession(url)).stopping).toBe(false)
    await button('Stop with an answer').click()
    await dialog.getByRole('button', { name: 'Stop with an answer' }).click()
    await page.getByText('Its next request is the last').waitFor()
    expect((await firstSession(url)).stopping).toBe(true)
    await callModel(url, first.messages, named('one'))
    await page.getByText('I could not find out.').waitFor()
    await page.locator('#list').getByText('stopped: operator').waitFor()
    await picture(page, `stopped-${colorScheme}`)
    await page.reload()
    await page.getByText('I could not find out.').waitFor()
    await button('Reset').click()
    await dialog.getByRole('button', { name: 'Reset' }).click()
    await page.getByText('It is reset.').waitFor()
    expect(await firstSession(url)).toMatchObject({ terminal: null })
    await button('Close').click()
    await page.locator('#detail').waitFor({ state: 'detached' })
    expect(problems).toEqual([])
  })

  it.each(SCHEMES)('counts down for a run that waits for an operator, and extends it (%s)', async (colorScheme) => {
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 3 },
      stop: { mode: 'ask', ask_timeout: '45s' },
    })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 3 })
    const { page, problems } = await openPage(`${url}/governor/`, { colorScheme })
    const answer = callModel(url, messages, named('one'))
    await page.locator('#list').getByText('asks: 3 → 4?').waitFor()
    const waits = page.locator('#list').getByText(/waits \d+ s/)
    const before = await waits.textContent()
    await expect.poll(() => waits.textContent()).not.toBe(before)
    await page.locator('#list a').first().click()
    await page.getByText('The limit of 3 iterations is reached').waitFor()
    await picture(page, `asking-${colorScheme}`)
    await page.getByRole('button', { name: 'Extend 3 → 4' }).click()
    await page.getByRole('button', { name: 'Extend', exact: true }).click()
    await page.locator('.facts').getByText('4 of 4').waitFor()
    expect((await answer).headers.get('x-governor-iteration')).toBe('4/4')
    expect(problems).toEqual([])
  })

  it('goes to the sessions with the arrow keys, whatever had the focus before', async () => {
    const { url } = await startBoth(stuck)
    for (const name of ['one', 'two']) await runAgent(url, START, { ...named(name), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/`)
    const names = page.locator('#list a')
    await names.nth(1).waitFor()
    await page.keyboard.press('?')
    await page.locator('dialog[open]').waitFor()
    await page.keyboard.press('Escape')
    await page.locator('dialog[open]').waitFor({ state: 'detached' })
    // The browser takes the focus out of a closed dialog with the next frame.
    await page.waitForFunction('document.activeElement === document.body')
    for (const key of ['ArrowDown', 'ArrowDown']) await page.keyboard.press(key)
    await names.nth(1).and(page.locator(':focus')).waitFor()
    await page.keyboard.press('Enter')
    await page.locator('#detail').waitFor()
    for (const key of ['/', 'ArrowDown']) await page.keyboard.press(key)
    await names.first().and(page.locator(':focus')).waitFor()
    expect(problems).toEqual([])
  })

  it('keeps the focus on a session whose row moves', async () => {
    const { url } = await startBoth(stuck, { budget: { max_iterations: 40 }, loop_guard: { mode: 'warn' } })
    for (const name of ['one', 'two']) await runAgent(url, START, { ...named(name), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/`)
    const names = page.locator('#list a')
    await names.nth(1).waitFor()
    const last = (await names.nth(1).textContent()) ?? ''
    await names.nth(1).focus()
    await runAgent(url, START, { ...named(last), max: 8 })
    await names.first().getByText(last).waitFor()
    await names.first().and(page.locator(':focus')).waitFor()
    expect(problems).toEqual([])
  })

  it('fits the screen of a phone, and works with the keyboard only', async () => {
    const { url } = await startBoth(stuck, { budget: { max_iterations: 40 }, loop_guard: { mode: 'warn' } })
    await runAgent(url, START, { ...named('one'), max: 8 })
    const { page, problems } = await openPage(`${url}/governor/`, { viewport: { width: 390, height: 800 } })
    await page.locator('#list .going_round').waitFor()
    const width = () => page.evaluate('document.documentElement.scrollWidth')
    expect(await width()).toBeLessThanOrEqual(390)
    await page.getByLabel('Order').focus()
    for (const key of ['Tab', 'ArrowDown', 'Enter']) await page.keyboard.press(key)
    await page.getByText('nothing new since iteration').waitFor()
    expect(await width()).toBeLessThanOrEqual(390)
    await picture(page, 'phone')
    for (const key of ['Tab', 'Tab', 'Tab', 'Tab', 'Enter']) await page.keyboard.press(key)
    await page.getByRole('dialog').getByText('Stop one?').waitFor()
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    await page.keyboard.press('Escape')
    await page.locator('#detail').waitFor({ state: 'detached' })
    expect((await firstSession(url)).stopping).toBe(false)
    expect(problems).toEqual([])
  })

  it('shows in forced colours, too, which session and which group are chosen, and how full a limit is', async () => {
    const { url } = await startBoth(stuck, { budget: { max_iterations: 40 } })
    for (const name of ['one', 'two']) await runAgent(url, START, { ...named(name), max: 2 })
    const { page, problems } = await openPage(`${url}/governor/#one`, { forcedColors: 'active' })
    await page.locator('#detail .facts').waitFor()
    // Forced colours drop backgrounds and shadows, unless they do not adjust them.
    const shown = (of: string) =>
      page.evaluate(`Array.from(document.querySelectorAll('${of}'), (one) => {
      const { outlineStyle, forcedColorAdjust } = getComputedStyle(one)
      return outlineStyle !== 'none' || forcedColorAdjust === 'none'
    })`)
    expect(await shown('#list tbody tr[aria-current="true"]')).toEqual([true])
    expect(await shown('#list tbody tr[aria-current="false"]')).toEqual([false])
    expect(await shown('#filters button')).toEqual([true, false])
    expect(await shown('#list .bar, #list .bar i')).toEqual([true, true, true, true])
    await picture(page, 'forced-colors')
    expect(problems).toEqual([])
  })

  it('cuts no name in a question on a phone', async () => {
    const { url } = await startBoth(runaway())
    const name = 'W'.repeat(120)
    await runAgent(url, START, { ...named(name), max: 1 })
    const { page } = await openPage(`${url}/governor/#${name}`, { viewport: { width: 390, height: 800 } })
    await page.getByRole('button', { name: 'Stop with an answer' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByText(`Stop ${name}?`).waitFor()
    expect(await dialog.evaluate((box) => box.scrollWidth - box.clientWidth)).toBe(0)
  })

  it('asks for the token, reports a wrong one, and shows sessions with the right one', async () => {
    const { url } = await startBoth(runaway(), { ops: { admin_token: 'secret', trust_loopback: false } })
    await runAgent(url, START, { ...named('my own name'), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/`)
    for (const width of [1440, 1000, 390]) {
      await page.setViewportSize({ width, height: 900 })
      const box = await page.getByRole('button', { name: 'Show sessions' }).boundingBox()
      expect(box?.height, `${width} px`).toBeLessThan(50)
      await picture(page, `sign-in-${width}`)
    }
    await page.getByLabel('Token').fill('wrong')
    await page.getByRole('button', { name: 'Show sessions' }).click()
    await page.getByText('does not know this token').waitFor()
    await picture(page, 'unauthorised')
    await page.getByLabel('Token').fill('secret')
    await page.keyboard.press('Enter')
    await page.getByText('my own name').waitFor()
    const kept = await page.evaluate('JSON.stringify([localStorage, sessionStorage, document.cookie])')
    expect(kept).not.toContain('secret')
    expect(page.url()).not.toContain('secret')
    const [cookie, ...others] = await page.context().cookies()
    expect(others).toEqual([])
    expect(cookie).toMatchObject({
      name: `governor-${new URL(url).port}`,
      path: '/governor',
      httpOnly: true,
      sameSite: 'Strict',
      expires: -1,
    })
    expect(cookie?.value).toMatch(/^[\w-]{32}$/)
    await page.reload()
    await page.locator('#list').getByText('my own name').waitFor()
    const second = await page.context().newPage()
    await second.goto(`${url}/governor/`)
    await second.locator('#list').getByText('my own name').waitFor()
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.getByLabel('Token').waitFor()
    expect(await page.context().cookies()).toEqual([])
    await second.getByLabel('Token').waitFor()
    await page.reload()
    await page.getByLabel('Token').waitFor()
    expect(problems).toEqual([])
  })

  it('sends its cookie to no page of another port, and a page there can do nothing with it', async () => {
    const { url } = await startBoth(runaway(), { ops: { admin_token: 'secret', trust_loopback: false } })
    const evil = await serve((_request, response) => {
      response.setHeader('content-type', 'text/html')
      response.end('<!doctype html><title>Another page</title>')
    })
    onTestFinished(() => evil.close())
    const { page } = await openPage(`${url}/governor/`)
    await page.getByLabel('Token').fill('secret')
    await page.keyboard.press('Enter')
    await page.getByRole('button', { name: 'Sign out' }).waitFor()
    await page.goto(evil.url)
    const tried = await page.evaluate(async (governor) => {
      const outcomes: string[] = []
      for (const [path, method] of [
        ['sessions', 'GET'],
        ['events', 'GET'],
        ['pause', 'POST'],
        ['sign-out', 'POST'],
      ])
        for (const mode of ['cors', 'no-cors'] as const)
          await fetch(`${governor}/governor/${path}`, { method: method ?? '', mode, credentials: 'include' }).then(
            async (response) => outcomes.push(`${response.status}${await response.text()}`),
            () => outcomes.push('failed'),
          )
      return outcomes
    }, url)
    // What another page may send, it can't read: 0 is the status of an opaque response.
    expect(tried.filter((outcome) => outcome !== 'failed' && outcome !== '0')).toEqual([])
    const asToken = { headers: { authorization: 'Bearer secret' } }
    expect((await ask(url, '/governor/pause', asToken)).json).toEqual({ paused: [] })
    await page.goto(`${url}/governor/`)
    await page.getByRole('button', { name: 'Sign out' }).waitFor()
  })

  describe('while nobody is signed in', () => {
    const access = (token: string) => ({ ops: { admin_token: token, trust_loopback: false } })
    const signIn = async (page: Page, token: string) => {
      await page.getByLabel('Token').pressSequentially(token)
      await page.keyboard.press('Enter')
    }
    const shown = (page: Page) => page.locator('main :visible, header .tools:visible').allTextContents()
    const loseAccess = (page: Page) => page.route(/sessions|events/, (route) => route.fulfill({ status: 401 }))

    /** How a page comes to ask for the token. `page` was just opened. */
    const WAYS: Readonly<Record<string, (page: Page) => Promise<unknown>>> = {
      'it was opened without a token': async () => undefined,
      'the token was wrong': async (page) => {
        await signIn(page, 'wrong')
        await page.getByText('Governor does not know this token.').waitFor()
      },
      'the token ends while a session is open and the list is loaded again': async (page) => {
        await signIn(page, 'secret')
        await page.locator('#list a').first().click()
        await page.locator('#timeline tbody tr').first().waitFor()
        await loseAccess(page)
        await page.clock.fastForward(61_000)
      },
      'the token ends before an action': async (page) => {
        await signIn(page, 'secret')
        await page.locator('#list a').first().click()
        await page.getByRole('button', { name: 'Reset' }).click()
        await loseAccess(page)
        await page.getByRole('dialog').getByRole('button', { name: 'Reset' }).click()
      },
    }

    it.each(Object.keys(WAYS))('shows the form and nothing else, whatever happens meanwhile, where %s', async (way) => {
      const { url } = await startBoth(runaway(), access('secret'))
      await runAgent(url, START, { ...named('one'), max: 1 })
      const { page, problems } = await openPage(`${url}/governor/`, { clock: true })
      await page.getByLabel('Token').waitFor()
      await WAYS[way]?.(page)
      await page.locator('#sign-in').waitFor()
      await page.getByText('not signed in').waitFor()
      const before = await shown(page)
      const happenings: readonly (() => Promise<unknown>)[] = [
        () => page.clock.runFor(1_100),
        () => runAgent(url, START, { ...named('two'), max: 1 }),
        () => page.clock.fastForward(70_000),
        () => page.keyboard.press('Escape'),
        () => page.evaluate(`location.hash = 'one'`),
        () => page.evaluate(`document.dispatchEvent(new Event('visibilitychange'))`),
        () => page.clock.runFor(12_000),
      ]
      for (const happen of happenings) {
        await happen()
        expect(await shown(page)).toEqual(before)
      }
      expect(before.join()).not.toMatch(/sessions yet|Stop|Iterations/)
      await page.unroute(/sessions|events/)
      await signIn(page, 'secret')
      await page.locator('#list').getByText('two').waitFor()
      expect(await page.locator('#sign-in').isVisible()).toBe(false)
      expect(problems).toEqual([])
    })
  })

  it('reports that it is disconnected after Governor stopped', async () => {
    const { url, governor } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { page } = await openPage(`${url}/governor/`)
    await page.locator('#list .working').waitFor()
    await governor.close()
    await page.getByText('disconnected').waitFor()
    await page.getByRole('alert').getByText("can't be reached").waitFor()
    await picture(page, 'disconnected')
    // What was there is still to be read.
    expect(await page.locator('#list a').count()).toBe(1)
  })

  it('says that it loads while the list is on its way, and shows it then', async () => {
    const store = createStore()
    let release = () => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    const { url } = await startBoth(
      runaway(),
      {},
      {
        store: {
          ...store,
          async *all() {
            await released
            yield* store.all()
          },
        },
      },
    )
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { page } = await openPage(`${url}/governor/`, { clock: true })
    expect(await page.getByRole('status').first().textContent()).toBe('loading…')
    await page.clock.runFor(7_000)
    expect(await page.getByText('No sessions yet').isVisible()).toBe(false)
    release()
    await page.locator('#list .working').waitFor()
    await page.getByText('live', { exact: true }).waitFor()
  })

  it('says when it last heard from Governor, once that is long ago', async () => {
    const { url } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { page } = await openPage(`${url}/governor/`, { clock: true })
    await page.getByText('live', { exact: true }).waitFor()
    await page.clock.fastForward(14_000)
    await page.getByText(/last event 1[45] s ago/).waitFor()
    // The next sign of life is not far.
    await page.getByText('live', { exact: true }).waitFor()
  })

  it('connects anew where a network has left its connections open and nothing comes over them', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 10 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    const line = await openLine(url)
    const { page } = await openPage(`${line.url}/governor/#one`, { clock: true })
    await page.locator('.facts').getByText('1 of 10').waitFor()
    await page.getByText('live', { exact: true }).waitFor()
    const asked = page.waitForRequest(/sessions[?]/)
    line.cut()
    await page.getByLabel('Search').fill('o')
    await asked
    await runAgent(url, messages, { ...named('one'), max: 1 })
    await page.clock.fastForward(14_000)
    await page.getByText(/last event 1[45] s ago/).waitFor()
    await page.clock.fastForward(8_000)
    await page.clock.fastForward(2_000)
    await page.locator('.facts').getByText('2 of 10').waitFor()
    await page.locator('#list').getByText('2 of 10').waitFor()
    await page.getByText('live', { exact: true }).waitFor()
    expect(await page.getByRole('alert').count()).toBe(0)
    expect(await page.getByLabel('Search').inputValue()).toBe('o')
  })

  it('shows within a minute what only time changes', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(() => ({ text: 'Done.' }), {}, { now: () => time.now })
    await runAgent(url, START, named('one'))
    const { page } = await openPage(`${url}/governor/`, { clock: true })
    await page.locator('#list .answered').waitFor()
    time.now += 300_000
    await page.clock.fastForward(61_000)
    await page.locator('#list .completed').waitFor()
  })

  it('shows beside the list, too, what only time changes, and that all agents are paused', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(() => ({ text: 'Done.' }), {}, { now: () => time.now })
    await runAgent(url, START, named('one'))
    const { page } = await openPage(`${url}/governor/#one`, { clock: true })
    await page.locator('#detail .answered').waitFor()
    await ask(url, '/governor/pause', { method: 'POST', body: {} })
    await page.locator('#detail .chip').getByText('paused').waitFor()
    await ask(url, '/governor/resume', { method: 'POST', body: {} })
    await page.locator('#detail .answered').waitFor()
    time.now += 300_000
    await page.clock.fastForward(61_000)
    await page.locator('#detail .completed').waitFor()
  })

  it('shows no session that a new Governor does not know, and its problem no longer once it is connected', async () => {
    const { url, governor, provider } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { page } = await openPage(`${url}/governor/#one`)
    await page.locator('#detail .working').waitFor()
    await governor.close()
    await page.getByRole('alert').getByText("can't be reached").waitFor()
    expect(await page.locator('#detail .working').count()).toBe(1)
    const { port } = new URL(url)
    await startGovernor(provider.url, { server: { port: Number(port) } })
    await page.getByText('live', { exact: true }).waitFor()
    await page.locator('#detail').getByRole('status').getByText('no session').waitFor()
    expect(await page.getByRole('button', { name: 'Stop with an answer' }).count()).toBe(0)
    await page.getByText('No sessions yet').waitFor()
    expect(await page.getByRole('alert').count()).toBe(0)
    // Where the name is used again, it shows what that is.
    await runAgent(url, START, { ...named('one'), max: 1 })
    await page.locator('#list .working').waitFor()
    await page.locator('#detail .working').waitFor()
  })

  it('draws its bars with their newest minutes, each with its time once, in the colours of the scheme', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(runaway(), {}, { now: () => time.now })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/#one`, { colorScheme: 'light' })
    const chart = page.getByRole('img', { name: 'Tokens per minute' })
    const before = await chart.getAttribute('aria-label')
    time.now += 300_000
    await callModel(url, messages, named('one'))
    await expect.poll(() => chart.getAttribute('aria-label')).not.toBe(before)
    const colour = () => page.evaluate(`getComputedStyle(document.querySelector('.bars .tone-0')).fill`)
    const light = await colour()
    await page.emulateMedia({ colorScheme: 'dark' })
    await expect.poll(colour).not.toBe(light)
    // Each time stands below its bar once, and none is cut.
    const times = page.locator('.bars .times span')
    const texts = await times.allTextContents()
    expect(new Set(texts).size).toBe(texts.length)
    expect(texts.length).toBeGreaterThan(2)
    const frame = await page.locator('.bars').first().boundingBox()
    for (const time of await times.all()) {
      const { x = 0, width = 0 } = (await time.boundingBox()) ?? {}
      expect(x).toBeGreaterThanOrEqual(frame?.x ?? 0)
      expect(x + width).toBeLessThanOrEqual((frame?.x ?? 0) + (frame?.width ?? 0) + 1)
    }
    expect(problems).toEqual([])
  })

  it('has a table with names for screen readers, and keeps the focus where rows change their order', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 10 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    await runAgent(url, START, { ...named('two'), max: 2 })
    const { page } = await openPage(`${url}/governor/`)
    const table = page.getByRole('table', { name: 'Sessions, those that need you first' })
    const links = table.getByRole('link')
    await links.nth(1).waitFor()
    expect(await links.allTextContents()).toEqual(['two', 'one'])
    expect(await table.getByRole('columnheader').allTextContents()).toEqual([
      'Session',
      'Client',
      'Model',
      'Limit',
      'Cost',
      'Tokens',
    ])
    expect(await table.getByRole('row').nth(2).getByRole('cell').count()).toBe(6)
    await table.getByRole('img', { name: 'Tokens per iteration' }).first().waitFor()
    await links.nth(1).focus()
    await runAgent(url, messages, { ...named('one'), max: 4 })
    await expect.poll(() => links.allTextContents(), { timeout: 20_000 }).toEqual(['one', 'two'])
    await expect.poll(() => page.evaluate('document.activeElement.textContent')).toBe('one')
  })

  it('keeps what somebody types into a question while its session goes on', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 40 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    const { page } = await openPage(`${url}/governor/#one`)
    await page.getByRole('button', { name: 'Extend 40 → 50' }).click()
    const dialog = page.getByRole('dialog')
    const field = dialog.getByLabel('Iterations')
    expect(await field.inputValue()).toBe('50')
    await field.fill('7')
    await runAgent(url, messages, { ...named('one'), max: 2 })
    await page.locator('.facts').getByText('3 of 40').waitFor()
    await field.press('End')
    await field.pressSequentially('7')
    await field.press('Enter')
    await page.getByText('Extended to 77.').waitFor()
    await page.locator('.facts').getByText('3 of 77').waitFor()
  })

  it('extends the limit that ended a run, so that the run goes on', async () => {
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 40, run: { max_cost_usd: 2 } },
      models: [{ model: 'gpt-test', price: { input: 1_000, output: 10_000 } }],
    })
    const { messages } = await runAgent(url, START, named('one'))
    const { page } = await openPage(`${url}/governor/#one`)
    await page.locator('.say').getByText('max cost, $2.00 of $2.00, with an answer').waitFor()
    await page.getByRole('button', { name: 'Extend $2.00 → $2.50' }).click()
    expect(await page.getByRole('dialog').getByLabel('Dollars').inputValue()).toBe('2.5')
    await page.getByRole('button', { name: 'Extend', exact: true }).click()
    await page.getByText('Extended to $2.50.').waitFor()
    const { headers } = await callModel(url, messages.slice(0, -1), named('one'))
    expect(headers.get('x-governor-terminal-state')).toBeNull()
  })

  it('says of a run that ended while its stop was confirmed that it had ended', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 2 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    const { page } = await openPage(`${url}/governor/#one`)
    await page.getByRole('button', { name: 'Stop with an answer' }).click()
    await runAgent(url, messages, named('one'))
    await page.locator('#detail .chip').getByText('stopped: iterations').waitFor()
    await page.getByRole('dialog').getByRole('button', { name: 'Stop with an answer' }).click()
    await page.getByText('It had ended already.').waitFor()
  })

  it('acts once on a double click in a question, and leaves alone what lies behind it', async () => {
    const { url } = await startBoth(stuck)
    for (let at = 0; at < 24; at++) await callModel(url, START, named(`job-${at}`))
    const { page } = await openPage(`${url}/governor/#job-3`, { viewport: { width: 1280, height: 900 } })
    const dialog = page.getByRole('dialog')
    const title = page.locator('h2').first()
    let posts = 0
    page.on('request', (request) => {
      if (request.method() === 'POST') posts++
    })
    for (const [name, sent] of [
      ['Cancel', 0],
      ['Stop with an answer', 1],
    ] as const) {
      await page.getByRole('button', { name: 'Stop with an answer' }).click()
      await dialog.getByRole('button', { name }).dblclick()
      await dialog.waitFor({ state: 'detached' })
      expect(await title.textContent()).toBe('job-3')
      expect(posts).toBe(sent)
    }
    // Rows of the list lay behind both buttons, and take a click of their own.
    await page.locator('#list').getByText('job-9', { exact: true }).click()
    await title.getByText('job-9').waitFor()
  })

  it('keeps rows at their places while a pointer is over them', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 10 } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    await runAgent(url, START, { ...named('two'), max: 2 })
    const { page } = await openPage(`${url}/governor/`)
    const links = page.locator('#list a')
    await links.nth(1).hover()
    const loaded = page.waitForResponse(
      async (response) =>
        response.url().includes('/sessions?') && /"one".*"two"/.test(JSON.stringify((await response.json()).sessions)),
    )
    await runAgent(url, messages, { ...named('one'), max: 4 })
    await loaded
    await page.locator('#list').getByText('5 of 10').waitFor()
    expect(await links.allTextContents()).toEqual(['two', 'one'])
    await page.getByLabel('Search').hover()
    await expect.poll(() => links.allTextContents()).toEqual(['one', 'two'])
  })

  it('searches and sorts on the server, and says how many of how many it shows', async () => {
    const store = createStore(1_200)
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 100 } }, { store })
    await runAgent(url, START, { ...named('needle'), max: 2, body: { model: 'opus' } })
    await fillStore(store, 450)
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.getByText('200 of 450').waitFor()
    await page.getByRole('button', { name: 'Show more' }).click()
    await page.getByText('400 of 450').waitFor()
    await page.getByLabel('Order').selectOption('newest')
    await page.getByText('200 of 450').waitFor()
    await page.getByLabel('Search').fill('nothing like it')
    await page.getByText('No session matches').waitFor()
    expect(problems).toEqual([])
  })

  it('takes no more of a text that is pasted into the search than a search may have', async () => {
    const { url } = await startBoth(stuck)
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.locator('#list').getByText('one', { exact: true }).waitFor()
    await page.locator('#search').focus()
    await page.keyboard.insertText('u'.repeat(230))
    await page.getByText('No session matches').waitFor()
    expect(problems).toEqual([])
  })

  it('has an address for each session, by its id and by the name that its client gave it', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 10 } })
    await runAgent(url, START, { ...named('build 42'), max: 2 })
    const { id } = await firstSession(url)
    const { page, problems } = await openPage(`${url}/governor/#build%2042`)
    await page.locator('.facts').getByText('2 of 10').waitFor()
    await page.locator('#list a').first().click()
    await page.waitForURL(`${url}/governor/#${id}`)
    await page.locator('.facts').getByText('2 of 10').waitFor()
    await page.goBack()
    await page.locator('.facts').getByText('2 of 10').waitFor()
    expect(problems).toEqual([])
  })

  it('takes an address that is not encoded for the name that it is', async () => {
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 10 } })
    await runAgent(url, START, { ...named('100%'), max: 2 })
    const { page, problems } = await openPage(`${url}/governor/#100%`)
    await page.locator('.facts').getByText('2 of 10').waitFor()
    await page.getByRole('button', { name: 'Close' }).click()
    await page.evaluate(`location.hash = '100%'`)
    await page.locator('.facts').getByText('2 of 10').waitFor()
    expect(problems).toEqual([])
  })

  it.each([
    { setting: 'max_tool_calls', max: 7, to: 8 },
    { setting: 'max_tokens', max: 2_000_000, to: 2_000_001 },
    { setting: 'max_cost_usd', max: 500, to: 500.01 },
    { setting: 'max_cost_usd', max: 7.8125, to: 9.77 },
  ])('extends a limit to the number that was typed: $setting from $max to $to', async ({ setting, max, to }) => {
    const models = [{ model: '*', price: { input: 90, output: 100 } }]
    const { url } = await startBoth(runaway(), { models, budget: { max_iterations: 0, run: { [setting]: max } } })
    await runAgent(url, START, { ...named('one'), max: 2 })
    const { page } = await openPage(`${url}/governor/#one`)
    await page.getByRole('button', { name: /^Extend \S+ →/ }).click()
    await page.locator('dialog input').fill(String(to))
    await page.getByRole('button', { name: 'Extend', exact: true }).click()
    await page.getByText(/^Extended to/).waitFor()
    expect((await firstSession(url)).threads[0]?.meters.find((meter) => meter.max > 0)?.max).toBe(to)
  })

  it('says of the parts of what a session cost shares that add up to all of it', async () => {
    const calls = ['read', 'search', 'list'].map((name) => ({ name, arguments: {} }))
    const { url } = await startBoth(() => ({ calls }))
    const { message } = await callModel(url, START, named('one'))
    const content = 'a result like the others\n'.repeat(800)
    const results = message.tool_calls?.map(({ id }) => ({ role: 'tool' as const, tool_call_id: id, content })) ?? []
    await callModel(url, [...START, message, ...results], named('one'))
    const { page } = await openPage(`${url}/governor/#one`)
    await page.locator('.costs').getByText('search').waitFor()
    const shares = (await page.locator('.costs').innerText()).match(/\d+(?= %)/g) ?? []
    expect([shares.length, shares.reduce((sum, one) => sum + Number(one), 0)]).toEqual([4, 100])
  })

  it('tells a person who looks elsewhere that a run asks, once', async () => {
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 1 },
      stop: { mode: 'ask', ask_timeout: '45s' },
    })
    const { page } = await openPage(`${url}/governor/`, { permissions: ['notifications'] })
    await page.getByText('No sessions yet').waitFor()
    await page.evaluate(`
      window.notes = []
      Object.defineProperty(document, 'hidden', { get: () => true })
      window.Notification = class { static permission = 'granted'; constructor(title) { window.notes.push(title) } }
    `)
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    const answer = callModel(url, messages, named('one'))
    await expect.poll(() => page.evaluate('window.notes')).toEqual(['one asks: 1 → 2?'])
    await act(url, 'one', 'extend', { by: 1 })
    await answer
    await page.locator('#list').getByText('near limit').waitFor()
    expect(await page.evaluate('window.notes')).toEqual(['one asks: 1 → 2?'])
  })

  it.each([
    ['light', 1440],
    ['dark', 390],
  ] as const)('has nothing that axe finds wrong (%s, %i px)', async (colorScheme, width) => {
    const { url } = await startBoth(stuck, { budget: { max_iterations: 9 }, loop_guard: { mode: 'warn' } })
    await runAgent(url, START, { ...named('one'), max: 8 })
    await runAgent(url, START, { ...named('two'), max: 2 })
    const viewport = { width, height: 900 }
    const { page } = await openPage(`${url}/governor/`, { colorScheme, viewport, bypassCSP: true })
    const violations = async () => {
      await page.evaluate(axe.source)
      const found = (await page.evaluate('axe.run()')) as axe.AxeResults
      return found.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200))}`)
    }
    await page.locator('#list a').nth(1).waitFor()
    expect(await violations()).toEqual([])
    await page.locator('#list a').first().click()
    await page.locator('#timeline tbody tr').first().waitFor()
    expect(await violations()).toEqual([])
    await page.getByRole('button', { name: 'Stop with an answer' }).click()
    await page.getByRole('dialog').waitFor()
    expect(await violations()).toEqual([])
  })

  it('shows the sessions as soon as it has them, without waiting for a timer', async () => {
    const { url } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.addInitScript('window.setInterval = () => 0')
    await page.reload()
    await page.locator('#list a').first().waitFor()
    expect(problems).toEqual([])
  })

  it('shows ? for a cost of which nothing is known, and a sign at one that is known in part or estimated', async () => {
    const price = { input: 1_000, output: 0 }
    const { url } = await startBoth(runaway(), {
      budget: { run: { max_cost_usd: 500 } },
      overrides: [{ model: 'guessed', budget: { unknown_price: 'estimate' } }],
      models: [{ model: 'mine', price }],
    })
    await runAgent(url, START, { ...named('unknown'), max: 1 })
    const { messages } = await runAgent(url, START, { ...named('part'), max: 1, body: { model: 'mine' } })
    await runAgent(url, messages, { ...named('part'), max: 1 })
    await runAgent(url, START, { ...named('guess'), max: 1, body: { model: 'guessed' } })
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.locator('#list a').nth(2).waitFor()
    const costs = await page.locator('#list td.number').allTextContents()
    expect(costs.sort()).toEqual(['?no price', expect.stringMatching(/^~\$/), expect.stringMatching(/^≥\$0\.10≥\$/)])
    await page.locator('#list tr').filter({ hasText: 'no price' }).locator('a').click()
    await page.locator('.facts').getByText('? of $500').waitFor()
    expect(problems).toEqual([])
  })

  it('shows hostile names only as text', async () => {
    const tool = '<img src=x onerror="document.title=1">\u202e\u0000'
    const { url } = await startBoth(() => ({ calls: [{ name: tool, arguments: {} }] }), {
      ops: { admin_token: 'secret' },
    })
    const headers = {
      'x-governor-session': '<script>document.title=2</script>',
      'thread-id': '"><svg onload=1>',
    }
    await runAgent(url, START, { headers, max: 3, body: { model: '<b>model</b>'.repeat(900) } })
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.locator('#list a').first().click()
    await page.locator('#timeline').getByText('<img src=x').first().waitFor()
    expect(await page.title()).toMatch(/ · Governor$/)
    expect(await page.locator('#list img, #detail img, main script').count()).toBe(0)
    expect(problems).toEqual([])
  })

  it('draws a dot for each character that would turn round the text beside a name', async () => {
    const { url } = await startBoth(() => ({ calls: [{ name: 'a\u202eb', arguments: {} }] }))
    await runAgent(url, START, { ...named('one'), max: 3, body: { model: 'gpt-\u202e\u2066evil' } })
    const { page, problems } = await openPage(`${url}/governor/#one`)
    await page.locator('#timeline').getByText('a·b').first().waitFor()
    await page.locator('#detail').getByText('gpt-··evil').first().waitFor()
    expect(await page.locator('body').innerText()).not.toMatch(/[\u202a-\u202e\u2066-\u2069]/)
    expect(problems).toEqual([])
  })

  it('shows what was said in a session, as text and nothing else, with how its run ended', async () => {
    const hostile = '<img src=x onerror="document.title=1">\u202e\u0000 <script>document.title=2</script>'
    const { url } = await startBoth(runaway('search', `I found ${hostile}`), {
      budget: { max_iterations: 2 },
      sessions: { transcript: true },
    })
    const start = [{ role: 'user', content: `Find ${hostile}` }]
    const { messages } = await runAgent(url, start, named('one'))
    const { page, problems } = await openPage(`${url}/governor/`, { viewport: { width: 390, height: 800 } })
    await page.locator('#list a').first().click()
    const texts = page.locator('#texts li')
    await texts.nth(1).waitFor()
    expect(await texts.locator('pre').allTextContents()).toEqual([`Find ${hostile}`, `I found ${hostile}`])
    expect(await texts.nth(0).locator('p').textContent()).toMatch(/^user · agent 1 · [^·]*$/)
    expect(await texts.nth(1).locator('p').textContent()).toMatch(/ended: tool_limit_reached$/)
    expect(await page.locator('#texts img, #texts script').count()).toBe(0)
    expect(await page.title()).toMatch(/ · Governor$/)
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(390)
    await picture(page, 'transcript')
    const more = [...messages, { role: 'user', content: 'And then?' }]
    await callModel(url, more, named('one'))
    await texts.nth(2).getByText('And then?').waitFor()
    expect(problems).toEqual([])
  })

  it('shows no place for what was said while transcripts are off', async () => {
    const { url } = await startBoth(runaway('search', 'Enough.'), { budget: { max_iterations: 2 } })
    await runAgent(url, START, named('one'))
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.locator('#list a').first().click()
    await page.locator('#answer').getByText('Enough.').waitFor()
    expect(await page.locator('#texts').count()).toBe(0)
    expect(problems).toEqual([])
  })

  it('goes on drawing while sessions change in bursts, with 1,000 sessions', async () => {
    // Without a graphics card a frame takes a while; a picture needs more of them.
    const most = PICTURES ? 180 : 30
    const store = createStore(1_200)
    const { url } = await startBoth(runaway(), { budget: { max_iterations: 100 } }, { store })
    await callModel(url, START, named('session 0'))
    await fillStore(store, 1_000)
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.getByText('200 of 1000').waitFor()
    const frames = page.evaluate(`new Promise((resolve) => {
      const times = []
      let last = performance.now()
      const next = (now) => {
        times.push(now - last)
        last = now
        if (times.length < ${most}) requestAnimationFrame(next)
        else resolve(times.sort((a, b) => a - b))
      }
      requestAnimationFrame(next)
    })`)
    let isOver = false
    const measured = frames.finally(() => {
      isOver = true
    })
    for (let at = 0; !isOver; at += 10)
      await Promise.all(
        Array.from({ length: 10 }, (_, more) =>
          callModel(url, [...START, { role: 'user', content: `${at}` }], named(`session ${(at + more) % 100}`)),
        ),
      )
    const times = (await measured) as number[]
    expect(times).toHaveLength(most)
    if (PICTURES)
      process.stderr.write(`frames: median ${times[90]} ms, 95th ${times[171]} ms, worst ${times[179]} ms\n`)
    expect(await page.locator('#list a').count()).toBe(200)
    expect(problems).toEqual([])
  })

  it('shows within a second what an operator does elsewhere', async () => {
    const { url } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 2 })
    const { page } = await openPage(`${url}/governor/`)
    await page.locator('#list .working').waitFor()
    await act(url, (await firstSession(url)).id, 'stop')
    await page.locator('#list').getByText('stopping').waitFor({ timeout: 10_000 })
  })
})
