/** `governor pause` and `resume`: agents get no answer of a model, until they are resumed. */
import type { Paused } from '../../ops/sessions/api-schema.ts'
import { pausedText } from '../../ops/sessions/labels.ts'
import { type Call, type Terminal, UsageError } from '../command.ts'
import { coloured, jsonLine, showsColours, visible } from '../terminal-text.ts'
import { type Connection, connect, idOfSession, send } from './sessions-client.ts'

/** Returns a line for each pause, for people. */
export function pausedLines({ paused }: Paused, terminal: Terminal): string {
  let lines = ''
  for (const one of paused) lines += `${coloured(visible(pausedText(one)), 'red', showsColours(terminal))}\n`
  return lines
}

/** Returns the id of a session that is paused: of one that is forgotten, its pause alone knows it. */
async function idOfPaused(connection: Connection, text: string): Promise<string> {
  try {
    return await idOfSession(connection, text)
  } catch (error) {
    const { paused } = await send<Paused>(connection, 'pause', 'paused')
    const [id, other] = paused.flatMap(({ session }) => (session?.startsWith(text) ? session : []))
    if (id === undefined || other !== undefined) throw error
    return id
  }
}

/** Pauses or resumes agents, and prints what is paused then. Throws `CommandError`, and `UsageError`. */
export async function pause(command: 'pause' | 'resume', { flags }: Call, terminal: Terminal): Promise<number> {
  const { session: given, key, upstream: upstreams = [], for: length, reason, hold, json } = flags
  const [upstream, other] = upstreams
  if (other !== undefined) throw new UsageError(`${command} takes one --upstream`)
  const connection = connect(flags, terminal.env)
  const idOf = command === 'pause' ? idOfSession : idOfPaused
  const session = given === undefined ? undefined : await idOf(connection, given)
  const scope = { session, key, upstream }
  const body = command === 'pause' ? { ...scope, for: length, reason, hold } : scope
  const reply = await send<Paused>(connection, command, 'paused', body)
  if (json) {
    terminal.out(jsonLine(reply))
    return 0
  }
  const left = pausedLines(reply, terminal)
  terminal.out(left === '' ? 'nothing is paused\n' : left)
  return 0
}
