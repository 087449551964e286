/** A real terminal: a shell in tmux, with keys to press and a screen to read. */
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { promisify } from 'node:util'
import { expect, onTestFinished } from 'vitest'

const run = promisify(execFile)

export interface Pane {
  /** Presses keys, named as tmux names them: `q`, `Enter`, `C-c`, `Down`. */
  press(...keys: readonly string[]): Promise<void>
  /** Types a line and presses Enter. */
  enter(line: string): Promise<void>
  /** Returns the lines of the screen; with `escapes` also what sets their colours. */
  screen(escapes?: boolean): Promise<string>
  /** Waits until the screen shows a text. */
  shows(text: string | RegExp): Promise<void>
  /** Returns a variable of tmux, such as `alternate_on`. */
  state(variable: string): Promise<string>
  /** Closes the terminal, as who closes its window does. */
  close(): Promise<void>
}

/** Opens a shell on a screen of so many columns and rows for the current test. */
export async function openPane(columns = 80, rows = 24, env: Readonly<Record<string, string>> = {}): Promise<Pane> {
  const socket = `governor-${randomBytes(6).toString('hex')}`
  const tmux = async (...args: readonly string[]) =>
    (await run('tmux', ['-L', socket, '-f', '/dev/null', ...args])).stdout
  const variables = Object.entries(env).flatMap(([name, value]) => ['-e', `${name}=${value}`])
  const close = async () => {
    await tmux('kill-server').catch(() => undefined)
  }
  onTestFinished(close)
  await tmux('new-session', '-d', '-x', String(columns), '-y', String(rows), ...variables, 'sh')
  const screen = (escapes = false) => tmux('capture-pane', '-p', ...(escapes ? ['-e'] : []))
  const pane: Pane = {
    press: async (...keys) => {
      await tmux('send-keys', ...keys)
    },
    enter: async (line) => {
      await tmux('send-keys', '-l', line)
      await tmux('send-keys', 'Enter')
    },
    screen,
    shows: (text) => expect.poll(() => screen(), { interval: 100 }).toMatch(text),
    close,
    state: async (variable) => (await tmux('display-message', '-p', `#{${variable}}`)).trim(),
  }
  await pane.shows(/^[$#]/)
  return pane
}
