/** `governor sessions`, `session`, `stop` and `extend`: show what agents do, and steer them, from the command line. */
import type { ExitCode, Terminal } from './command.ts'
import { jsonLine, sessionTable, sessionText, transcriptText } from './session-table.ts'
import {
  allSessions,
  ClientError,
  createSessionsClient,
  type Detail,
  type SessionsClient,
} from './sessions-client.ts'

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

function outcome(
  { id, command }: { readonly id: string; readonly command: 'stop' | 'extend' },
  after: Detail,
): string {
  if (command === 'stop')
    return after.stopping ? `${id}: its next request is the last\n` : `${id}: had ended already\n`
  const max = after.max_iterations
  return `${id}: ${max > 0 ? `iteration ${after.iteration} of ${max} now` : 'has no limit of iterations'}\n`
}

async function runOn(client: SessionsClient, options: SessionsOptions, terminal: Terminal): Promise<void> {
  const { command, args, json } = options
  const columns = terminal.columns?.() ?? 80
  if (command === 'sessions') {
    const sessions = await allSessions(client, (text) => terminal.err(`governor: ${text}\n`))
    for (const session of json ? sessions : []) terminal.out(jsonLine(session))
    if (!json) terminal.out(sessionTable(sessions, columns))
    return
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
  const after = await (command === 'stop'
    ? client.stop(id)
    : client.extend(id, /^\d+$/.test(by) ? Number(by) : by))
  terminal.out(json ? jsonLine(after) : outcome({ id, command }, after))
}

/** Runs one of the commands. Returns 1 if Governor can't be reached or refuses. */
export async function sessions(options: SessionsOptions, terminal: Terminal): Promise<ExitCode> {
  try {
    await runOn(createSessionsClient(options.url, terminal.env), options, terminal)
    return 0
  } catch (error) {
    if (!(error instanceof ClientError)) throw error
    terminal.err(`governor: ${error.message}\n`)
    return 1
  }
}
