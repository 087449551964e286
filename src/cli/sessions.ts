/** `governor sessions`, `session`, `stop` and `extend`: show what agents do, and steer them, from the command line. */
import type { Terminal } from './command.ts'
import { jsonLine, sessionTable, sessionText, transcriptText } from './session-table.ts'
import { allSessions, createSessionsClient, type Detail } from './sessions-client.ts'

/** The options of the commands. */
export interface SessionsOptions {
  readonly command: 'sessions' | 'session' | 'stop' | 'extend'
  /** The arguments of the command: an id, and by how much to extend. */
  readonly args: readonly string[]
  readonly json: boolean
  /** Print what was said in the session. */
  readonly transcript: boolean
  readonly url: string | undefined
}

function outcome({ id, command }: { readonly id: string; readonly command: 'stop' | 'extend' }, after: Detail): string {
  if (command === 'stop') return after.stopping ? `${id}: its next request is the last\n` : `${id}: had ended already\n`
  const max = after.max_iterations
  return `${id}: ${max > 0 ? `iteration ${after.iteration} of ${max} now` : 'has no limit of iterations'}\n`
}

/** Runs one of the commands. Throws `ClientError` if Governor can't be reached or refuses. */
export async function sessions(options: SessionsOptions, terminal: Terminal): Promise<void> {
  const client = createSessionsClient(options.url, terminal.env)
  const { command, args, json } = options
  const columns = terminal.columns?.() ?? 80
  if (command === 'sessions') {
    const all = await allSessions(client, (text) => terminal.err(`governor: ${text}\n`))
    return terminal.out(json ? all.map(jsonLine).join('') : sessionTable(all, columns))
  }
  const [given = '', by = '25%'] = args
  const id = await client.resolve(given)
  if (command === 'session' && options.transcript) {
    const said = await client.transcript(id)
    return terminal.out(json ? jsonLine(said) : transcriptText(said))
  }
  if (command === 'session') {
    const session = await client.session(id)
    return terminal.out(json ? jsonLine(session) : sessionText(session, columns))
  }
  const after = await (command === 'stop' ? client.stop(id) : client.extend(id, /^\d+$/.test(by) ? Number(by) : by))
  terminal.out(json ? jsonLine(after) : outcome({ id, command }, after))
}
