import type { ExitCode, Terminal } from '../cli/cli.ts'
export async function demo(terminal: Terminal): Promise<ExitCode> {
  terminal.out('')
  return 0
}
