/** `governor sessions`, `session`, `stop` and `extend`: show what agents do, and steer them, from the command line. */
import type { Call, Terminal } from './command.ts'
import { sessionTable, sessionText, transcriptText } from './session-table.ts'
import { allSessions, createSessionsClient } from './sessions-client.ts'
import { jsonLine } from './terminal-text.ts'

/** Prints all sessions. Throws `ClientError` if Governor can't be reached or refuses, as all commands here do. */
export async function sessions({ flags }: Call, terminal: Terminal): Promise<number> {
  const client = createSessionsClient(flags, terminal.env)
  const all = await allSessions(client, (text) => terminal.err(`governor: ${text}\n`))
  terminal.out(flags.json ? all.map(jsonLine).join('') : sessionTable(all, terminal.columns))
  return 0
}

export async function session({ args: [given = ''], flags }: Call, terminal: Terminal): Promise<number> {
  const client = createSessionsClient(flags, terminal.env)
  const id = await client.resolve(given)
  if (flags.transcript) {
    const said = await client.transcript(id)
    terminal.out(flags.json ? jsonLine(said) : transcriptText(said))
  } else {
    const detail = await client.session(id)
    terminal.out(flags.json ? jsonLine(detail) : sessionText(detail, terminal.columns))
  }
  return 0
}

export async function stop({ args: [given = ''], flags }: Call, terminal: Terminal): Promise<number> {
  const client = createSessionsClient(flags, terminal.env)
  const id = await client.resolve(given)
  const after = await client.stop(id)
  const outcome = after.stopping ? 'its next request is the last' : 'had ended already'
  terminal.out(flags.json ? jsonLine(after) : `${id}: ${outcome}\n`)
  return 0
}

export async function extend({ args: [given = '', by = '25%'], flags }: Call, terminal: Terminal): Promise<number> {
  const client = createSessionsClient(flags, terminal.env)
  const id = await client.resolve(given)
  const after = await client.extend(id, /^\d+$/.test(by) ? Number(by) : by)
  const { iteration, max_iterations: max } = after
  const outcome = max > 0 ? `iteration ${iteration} of ${max} now` : 'has no limit of iterations'
  terminal.out(flags.json ? jsonLine(after) : `${id}: ${outcome}\n`)
  return 0
}
