/** A real browser: Debian's chromium, driven by playwright-core. */
import { existsSync, mkdirSync } from 'node:fs'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'
import { onTestFinished } from 'vitest'

const PATHS = [
  process.env['CHROMIUM'] ?? '',
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
]

const path = PATHS.find((one) => one !== '' && existsSync(one))

/** True if no browser is installed and that is no failure, because this is not continuous integration. */
export const isWithoutBrowser = path === undefined && process.env['CI'] !== 'true'
if (isWithoutBrowser) process.stderr.write('no chromium (apt-get install chromium): the live page is not tested\n')

/** Where pictures of pages go, for people to look at; unset: nowhere. */
export const PICTURES = process.env['GOVERNOR_PICTURES']

/** Takes a picture of a whole page, if somebody wants pictures. */
export async function picture(page: Page, name: string): Promise<void> {
  if (!PICTURES) return
  mkdirSync(PICTURES, { recursive: true })
  await page.screenshot({ path: `${PICTURES}/${name}.png`, fullPage: true })
}

let browser: Promise<Browser> | undefined

function launch(): Promise<Browser> {
  browser ??= chromium.launch({
    executablePath: path ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu'],
  })
  return browser
}

export async function closeBrowser(): Promise<void> {
  const open = browser
  // Other files of the same worker open their own.
  browser = undefined
  await (await open)?.close()
}

/**
 * Opens a page of its own; with `clock`, the test may move its time; `at`: what its clock shows throughout. `problems`
 * holds what its console and its policies complained about.
 */
export async function openPage(
  url: string,
  { clock = false, at, ...options }: BrowserContextOptions & { readonly clock?: boolean; readonly at?: number } = {},
): Promise<{ readonly page: Page; readonly problems: string[] }> {
  const context = await (await launch()).newContext({ ...options })
  onTestFinished(() => context.close())
  const page = await context.newPage()
  if (clock) await page.clock.install()
  if (at !== undefined) await page.clock.setFixedTime(at)
  const problems: string[] = []
  page.on('console', (message) => {
    if (message.type() === 'error' && !message.text().includes('401')) problems.push(message.text())
  })
  page.on('pageerror', (error) => problems.push(error.message))
  page.on('request', (request) => {
    if (!request.url().startsWith(new URL(url).origin) && !request.url().startsWith('data:'))
      problems.push(`asks ${request.url()}`)
  })
  await page.goto(url)
  return { page, problems }
}
