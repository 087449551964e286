/** The page *Usage*, in a browser. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import axe from 'axe-core'
import { afterAll, describe, expect, it } from 'vitest'
import { ask } from '../support/admin.ts'
import { runAgent, START } from '../support/agent.ts'
import { closeBrowser, isWithoutBrowser, openPage, picture } from '../support/browser.ts'
import { startBoth } from '../support/governor.ts'
import { temporaryFolder } from '../support/process.ts'
import { runaway } from '../support/provider.ts'

const DAY = 86_400_000
const NOON = Date.parse('2026-11-27T12:00:00Z')
const models = [{ model: '*', price: { input: 90, output: 100 } }]
const NAMES = [
  'claude-opus-4-5',
  'gpt-5.2-codex',
  'claude-haiku-4-5',
  'gemini-3-pro',
  'qwen3-coder',
  'kimi-k2',
  'glm-4.7',
]

/** Lines of a month with so many sessions a day. */
function month(sessions: number): string {
  let text = ''
  for (let day = 29; day >= 0; day--)
    for (let at = 0; at < sessions; at++) {
      const model = NAMES[(at * 7 + day) % NAMES.length]
      const input = 1_000 * (1 + ((at * 31 + day * 17) % 50))
      const amounts = {
        runs: 1,
        iterations: 4,
        calls: 3,
        input,
        cached_input: input / 2,
        cache_write: 0,
        output: input / 20,
      }
      const who = {
        session: `task ${day} ${at}`,
        client: at % 3 ? 'claude-cli' : 'codex',
        model,
        price_known: at !== 1,
        tools: [{ tool: 'read_file', input: input / 4, cost_usd: input / 80_000 }],
      }
      text += `${JSON.stringify({ time: new Date(NOON - day * DAY).toISOString(), ...who, ...amounts, cost_usd: input / 20_000 })}\n`
    }
  return text
}

function startWith(text: string, config: object = {}) {
  const journal = join(temporaryFolder(), 'usage.jsonl')
  writeFileSync(journal, text)
  return startBoth(runaway(), { usage: { journal }, models, ...config }, { now: () => NOON })
}

/** Opens a page whose clock shows what that of Governor shows. */
const openAt = (url: string, options: object = {}) => openPage(url, { at: NOON, ...options })

describe.skipIf(isWithoutBrowser)('the page Usage in a browser', () => {
  afterAll(closeBrowser)

  it('shows a month by model, client, key, session, tool and day, fits any screen, and has nothing that axe finds wrong', async () => {
    const { url } = await startWith(month(12), { budget: { day: { max_cost_usd: 40 }, time_zone: 'UTC' } })
    const { page, problems } = await openAt(`${url}/governor/`, { bypassCSP: true })
    await page.getByRole('link', { name: 'Usage' }).click()
    const rows = page.locator('.sums tbody tr')
    await rows.filter({ hasText: 'claude-opus-4-5' }).waitFor()
    expect(await rows.filter({ hasNotText: 'Raise' }).count()).toBe(NAMES.length)
    expect(await page.locator('.bars g').count()).toBe(30)
    for (const [size, colorScheme] of [
      [1440, 'light'],
      [1000, 'light'],
      [390, 'dark'],
    ] as const) {
      await page.emulateMedia({ colorScheme })
      await page.setViewportSize({ width: size, height: 900 })
      expect(await page.evaluate('document.documentElement.scrollWidth'), `${size} px`).toBeLessThanOrEqual(size)
      await picture(page, `usage-${size}-${colorScheme}`)
      if (size === 1000) continue
      await page.evaluate(axe.source)
      const { violations } = (await page.evaluate('axe.run()')) as axe.AxeResults
      expect(violations.map(({ id, nodes }) => `${id}: ${nodes[0]?.html}`)).toEqual([])
    }
    for (const [by, first] of [
      ['client', 'claude-cli'],
      ['key', 'without a name'],
      ['session', 'task'],
      ['tool', 'read_file'],
      ['day', new Date(NOON).toLocaleDateString('sv')],
    ] as const) {
      await page.getByRole('link', { name: by, exact: true }).click()
      await rows.first().getByText(first).waitFor()
    }
    await page.getByRole('link', { name: '7 days' }).click()
    await expect.poll(() => page.locator('.bars g').count()).toBe(7)
    await page.reload()
    await expect.poll(() => page.locator('.bars g').count()).toBe(7)
    await page.getByRole('button', { name: 'Tokens' }).click()
    await page.getByRole('img', { name: /tokens in 7 days/ }).waitFor()
    await page.getByRole('link', { name: 'Live' }).click()
    await page.getByText('No sessions yet').waitFor()
    expect(problems).toEqual([])
  })

  it('gives all groups as a CSV file', async () => {
    const { url } = await startWith(month(2))
    const { page, problems } = await openAt(`${url}/governor/#/usage/model/30`)
    const coming = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Download CSV' }).click()
    const file = await coming
    expect(file.suggestedFilename()).toBe('governor-usage-by-model.csv')
    const text = readFileSync(await file.path(), 'utf8')
    expect(text).toMatch(/^model,runs,/)
    expect(text).toContain('\nkimi-k2,')
    expect(problems).toEqual([])
  })

  it('shows a month with 1,000 sessions a day, the dearest hundred by name', async () => {
    const { url } = await startWith(month(1_000))
    const { page, problems } = await openAt(`${url}/governor/#/usage/session/30`)
    await page.getByText('29900 others').waitFor()
    expect(await page.locator('.sums tbody tr').count()).toBe(101)
    expect(await page.locator('.sums tfoot').textContent()).toMatch(/^Total30000120000/)
    await picture(page, 'usage-sessions')
    expect(problems).toEqual([])
  })

  it('says that nothing was used, and how to keep a journal where there is none', async () => {
    const empty = await startWith('')
    const { page } = await openAt(`${empty.url}/governor/#/usage`)
    await page.getByText('Nothing was used in these 30 days').waitFor()
    await picture(page, 'usage-empty')
    await runAgent(empty.url, START, { headers: { 'x-governor-session': 'one' }, max: 1 })
    await page.getByRole('link', { name: '7 days' }).click()
    await page.locator('.sums tbody tr').first().waitFor()
    await picture(page, 'usage-one')
    const off = await startBoth(runaway())
    const { page: other, problems } = await openAt(`${off.url}/governor/#/usage`)
    await other.getByText('Start Governor with --journal FILE').waitFor()
    await picture(other, 'usage-off')
    expect(problems.filter((text) => !text.includes('404'))).toEqual([])
  })

  it('raises a limit of a day behind a confirmation, here and from the head line', async () => {
    const { url } = await startWith('', { budget: { day: { max_cost_usd: 0.02 }, time_zone: 'UTC' } })
    const { steps } = await runAgent(url, START, { headers: { 'x-governor-session': 'one' }, max: 5 })
    expect(steps.at(-1)?.governor).toMatchObject({ scope: 'day' })
    const max = async () => {
      const { budget } = (await ask(url, '/governor/budget')).json as { budget: { max: { cost_usd: number } }[] }
      return budget[0]?.max.cost_usd
    }
    const { page, problems } = await openAt(`${url}/governor/#/usage`)
    await page.getByRole('button', { name: 'Raise the limit of cost today, all' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Dollars 0.02 →').fill('0.5')
    await dialog.getByRole('button', { name: 'Cancel' }).click()
    expect(await max()).toBe(0.02)
    await page.getByRole('button', { name: 'Raise the limit of cost today, all' }).click()
    await dialog.getByLabel('Dollars 0.02 →').fill('0.5')
    await dialog.getByRole('button', { name: 'Raise' }).click()
    await page.locator('.limits').getByText('of $0.50').waitFor()
    expect(await max()).toBe(0.5)
    await page.locator('.head-line button').click()
    await picture(page, 'raise')
    await dialog.getByLabel('Dollars 0.50 →').fill('2')
    await page.keyboard.press('Enter')
    await page.locator('.head-line').getByText('of $2.00 today').waitFor()
    expect(await max()).toBe(2)
    expect(problems).toEqual([])
  })

  it('says why a limit is not raised, and not that Governor is out of reach', async () => {
    const { url } = await startWith('', { budget: { day: { max_cost_usd: 1 }, time_zone: 'UTC' } })
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' }, max: 1 })
    const { page } = await openAt(`${url}/governor/`)
    await page.locator('.head-line button').click()
    await page.getByRole('dialog').getByLabel('Dollars 1.00 →').fill('9000000000000')
    await page.keyboard.press('Enter')
    const alert = page.getByRole('alert')
    await alert.getByText('max_cost_usd').waitFor()
    expect(await alert.textContent()).not.toContain("can't be reached")
  })
})
