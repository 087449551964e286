/** `governor top` as it is built, on a real terminal. */
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { firstSession } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import type { Script } from '../support/provider.ts'
import { openPane, type Pane } from '../support/tmux.ts'

const named = (name: string) => ({ headers: { 'x-governor-session': name } })
const stuck: Script = ({ json }) =>
  json.tool_choice === 'none'
    ? { text: 'I could not find out.' }
    : { calls: [{ name: 'read_file', arguments: { path: 'a' } }] }

/** One agent in a loop, and one that has just begun. */
async function startTwo() {
  const both = await startBoth(stuck, { budget: { max_iterations: 40 }, loop_guard: { mode: 'warn' } })
  const { messages } = await runAgent(both.url, START, { ...named('stuck'), max: 8 })
  await runAgent(both.url, START, { ...named('fresh'), max: 1 })
  return { ...both, messages }
}

const command = (url: string) => `node ${resolve('dist/main.js')} top --url ${url}`

/** The shell gets back the screen, the cursor and its line editing. */
async function expectRestored(pane: Pane): Promise<void> {
  await pane.shows('before top')
  await expect.poll(() => pane.state('alternate_on')).toBe('0')
  expect(await pane.state('cursor_flag')).toBe('1')
  await pane.enter('stty -a; echo "after top"')
  await pane.shows(/^after top/m)
  const screen = await pane.screen()
  expect(screen).toMatch(/\sicanon/)
  expect(screen).toMatch(/\secho\s/)
}

describeWith('tmux', 'governor top on a terminal', () => {
  it('finds a loop, says why, extends and stops it by keys, in 80 columns', async () => {
    const { url, messages } = await startTwo()
    const pane = await openPane()
    await pane.enter(command(url))
    await pane.shows(/^2 at work · .*\/min · 1 needs you · .* today$/m)
    await pane.shows(/^> stuck +looping +\d+% +8\/40 +\S+ +\S+ node +gpt-test$/m)
    await pane.shows(/^ {2}fresh +working +\d+% +1\/40/m)
    // A terminal in application mode sends other bytes for the same arrow.
    await pane.press('Down', 'Up', 'Down')
    await pane.shows(/^> fresh +working/m)
    await pane.press('k', 's')
    await pane.shows('by cost')
    await pane.press('Enter')
    await pane.shows(/loop: +repetition read_file ×7 since iteration 1, told \d times/)
    await pane.shows(/#1 +8 warn/)
    await pane.press('e')
    await pane.shows('extend stuck: 40 → 50? (y/n, or a number)')
    await pane.press('6', '0')
    await pane.shows('40 → 60?')
    await pane.press('Enter')
    await pane.shows('extended to 60 iterations')
    await pane.shows('iterations 8 of 60')
    await pane.press('x', 'n', 'Escape')
    await pane.shows('8/60')
    expect((await firstSession(url)).stopping).toBe(false)
    await pane.press('x')
    await pane.shows('its next request gets its last answer (y/n)')
    await pane.press('y')
    await pane.shows('its next request is the last')
    await pane.shows(/stuck +stopping/)
    await callModel(url, messages, named('stuck'))
    await pane.shows(/stopped.*operator/)
    for (const order of ['by $/min', 'by iterations', 'newest', 'by limit', 'by tokens', 'by risk']) {
      await pane.press('s')
      await pane.shows(`${order} · q quit · ↑↓ · s sort · / search · i inspect · e extend · x stop`)
    }
    await pane.press('/', 'f', 'r', 'e')
    await pane.shows('search name, client, model: fre')
    await pane.shows(/^> fresh/m)
    expect(await pane.screen()).not.toContain('stuck')
    await pane.press('Enter', '/', 'BSpace', 'BSpace', 'BSpace', 'Enter')
    await pane.shows(/stuck +stopped/)
    await pane.press('j', 'i')
    await pane.shows('I could not find out.')
    await pane.press('x', 'y')
    await pane.shows('had ended already')
    for (const line of (await pane.screen()).split('\n')) expect(line.length).toBeLessThanOrEqual(80)
  })

  it('shows in colours how urgent a state is, and gives the terminal back after q', async () => {
    const { url } = await startTwo()
    const pane = await openPane()
    await pane.enter('echo "before top"')
    await pane.enter(command(url))
    await pane.shows('looping')
    expect(await pane.state('alternate_on')).toBe('1')
    const screen = await pane.screen(true)
    expect(screen).toContain('\u001b[31mlooping')
    expect(screen).toContain('\u001b[32mworking')
    await pane.press('q')
    await expectRestored(pane)
  })

  it('uses no colour where NO_COLOR is set, and gives the terminal back after C-c', async () => {
    const { url } = await startTwo()
    const pane = await openPane(80, 24, { NO_COLOR: '1' })
    await pane.enter('echo "before top"')
    await pane.enter(command(url))
    await pane.shows('looping')
    expect(await pane.screen(true)).not.toContain('\u001b')
    await pane.press('C-c')
    await expectRestored(pane)
  })

  it('shows the end of a session on a small screen, and gives the terminal back after SIGTERM', async () => {
    const { url } = await startTwo()
    const folder = mkdtempSync(join(tmpdir(), 'governor-top-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const pane = await openPane(80, 20)
    await pane.enter('echo "before top"')
    await pane.enter(`sh -c 'echo $$ > ${folder}/pid; exec ${command(url)}'`)
    await pane.shows('looping')
    await pane.press('i')
    await pane.shows(/#1 +8 warn[\s\S]*q quit/)
    process.kill(Number(readFileSync(join(folder, 'pid'), 'utf8')), 'SIGTERM')
    await expectRestored(pane)
  })

  it('says that Governor does not answer any more, keeps what it showed, and gives the terminal back', async () => {
    const { url, governor } = await startTwo()
    const pane = await openPane()
    await pane.enter('echo "before top"')
    await pane.enter(command(url))
    await pane.shows('looping')
    await governor.close()
    await pane.shows('no Governor answers')
    await pane.shows('looping')
    await pane.press('e', 'y')
    await pane.shows('! no Governor answers')
    await pane.press('q')
    await expectRestored(pane)
  })

  it('says nothing of a Governor that gave a key no answer once it answers again', async () => {
    const { url, governor, provider } = await startTwo()
    const pane = await openPane(120)
    await pane.enter(command(url))
    await pane.shows('looping')
    await governor.close()
    await pane.press('i')
    await pane.shows('! no Governor answers')
    const again = await startGovernor(provider.url, { server: { port: Number(new URL(url).port) } })
    await runAgent(again.url, START, { ...named('after'), max: 1 })
    await pane.shows(/^> after +working/m)
    await pane.shows(/^by risk · q quit/m)
  })

  it('gives each session one line where the screen is narrow, and cuts what does not fit', async () => {
    const { url } = await startTwo()
    for (const [columns, titles] of [
      [60, 'SESSION     STATE               RISK     LIMIT    COST'],
      [40, 'SESSION     STATE               RISK'],
      [24, 'SESSION     STATE'],
      [9, 'SESSION'],
    ] as const) {
      const pane = await openPane(columns, 12)
      await pane.enter('clear')
      await pane.enter(command(url))
      await pane.shows(/^ {2}fresh/m)
      const lines = (await pane.screen()).split('\n')
      expect(lines.slice(1, 4)).toEqual([
        `  ${titles}`,
        expect.stringMatching(/^> stuck/),
        expect.stringMatching(/^ {2}fresh/),
      ])
      expect(lines.slice(5).join('')).toBe('')
      await pane.press('i')
      await pane.shows(/^state:/m)
      expect((await pane.screen()).split('\n').filter((line) => !/^[a-z ]|^$|^\d\d:/.test(line))).toEqual([])
    }
  })

  it('searches what fits into a search where somebody pastes a long text', async () => {
    const { url } = await startTwo()
    const pane = await openPane()
    await pane.enter(command(url))
    await pane.shows('looping')
    await pane.press('/', ...Array.from({ length: 230 }, () => 'u'))
    await pane.shows('no session matches')
    await pane.press('Enter')
    await pane.shows(/“u+/)
    expect(await pane.screen()).not.toContain('! query')
  })

  it('says that an extension must be above the limit, and asks for none', async () => {
    const { url } = await startTwo()
    const pane = await openPane()
    await pane.enter(command(url))
    await pane.shows('looping')
    await pane.press('e', '5')
    await pane.shows('extend stuck: 40 → 5?')
    await pane.press('Enter')
    await pane.shows('! stuck: the limit is 40 already, give a larger one')
    expect((await firstSession(url)).max_iterations).toBe(40)
  })

  it('ends at once where Governor accepts a request and does not answer it', async () => {
    let isSilent = false
    const { url } = await startTwo()
    const server = http.createServer(async (request, response) => {
      if (isSilent) return
      const from = await fetch(`${url}${request.url}`)
      response.end(await from.text())
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    onTestFinished(() => {
      server.closeAllConnections()
      server.close()
    })
    const pane = await openPane()
    await pane.enter('echo "before top"')
    await pane.enter(command(`http://127.0.0.1:${(server.address() as AddressInfo).port}`))
    await pane.shows('looping')
    isSilent = true
    await once(server, 'request')
    await pane.press('q')
    await expectRestored(pane)
  })
})
