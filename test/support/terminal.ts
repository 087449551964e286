/** A terminal that keeps what is printed. */
import type { Terminal } from '../../src/cli/command.ts'

export interface CapturedTerminal extends Terminal {
  readonly printed: string
  readonly complaints: string
}

export function captureTerminal(
  options: Partial<Pick<Terminal, 'env' | 'isInteractive' | 'input' | 'columns'>> = {},
): CapturedTerminal {
  let printed = ''
  let complaints = ''
  return {
    env: {},
    isInteractive: false,
    memory: Number.POSITIVE_INFINITY,
    maxOpenFiles: Number.POSITIVE_INFINITY,
    columns: 80,
    rows: 24,
    async *input() {},
    ...options,
    get printed() {
      return printed
    },
    get complaints() {
      return complaints
    },
    out(text) {
      printed += text
    },
    err(text) {
      complaints += text
    },
    onSignal() {},
    onExit() {},
    exit() {},
  }
}
