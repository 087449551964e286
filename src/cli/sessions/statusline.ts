/**
 * `governor statusline`: one line of a session for the status line of Claude Code, which gives its session's id as
 * JSON.
 */
import { parseObject, textOf } from '../../core/json-object.ts'
import { isLoopback } from '../../http/urls.ts'
import type { SessionDetail } from '../../ops/sessions/api-schema.ts'
import { amount, doing, money, stateOf } from '../../ops/sessions/labels.ts'
import { type Call, CommandError, type Terminal } from '../command.ts'
import { visible } from '../terminal-text.ts'
import { askSession, connect } from './sessions-client.ts'

/** How long Governor may take for its answer, in milliseconds: the status line is drawn after every message. */
const PATIENCE_MS = 50
/** Bytes that Claude Code may give. */
const MAX_INPUT = 1_048_576

/** Returns `$0.41 of $2 · 14/60 · no loop`; in place of the loop also what else a person should know. */
function statusText(session: SessionDetail): string {
  const { threads, meters, state, iteration, max_iterations: max, loop } = session
  const leader = threads.find((one) => one.state === state && one.iteration === iteration) ?? threads.at(-1)
  const limit = [...(leader?.meters ?? []), ...meters].find((one) => one.name === 'cost' && one.max > 0)
  const cost = limit
    ? `${amount('cost', limit.used)} of ${amount('cost', limit.max).replace('.00', '')}`
    : money(session)
  const steps = max > 0 ? `${iteration}/${max}` : String(iteration)
  const isPlain = state === 'working' || state === 'answered' || state === 'completed' || state === 'idle'
  const what = loop ? `loop: ${doing({ ...session, asking: null })}` : isPlain ? 'no loop' : stateOf(session).text
  return visible([cost, steps, what].join(' · '))
}

async function inputOf(terminal: Terminal): Promise<string> {
  const chunks: Uint8Array[] = []
  let length = 0
  for await (const chunk of terminal.input()) {
    length += chunk.length
    if (length > MAX_INPUT) return ''
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString()
}

/** Returns the address of Governor: as given, else the one that Claude Code itself has, if it is of this machine. */
function addressIn({ flags }: Call, { env }: Terminal): string | undefined {
  const base = env['ANTHROPIC_BASE_URL']
  if (flags.url !== undefined || !base || !URL.canParse(base)) return flags.url
  const { hostname, origin } = new URL(base)
  return hostname === 'localhost' || isLoopback(hostname) ? origin : undefined
}

/** Prints the line, and nothing if no Governor answers in time or it does not know the session. Returns 0 always. */
export async function statusline(call: Call, terminal: Terminal): Promise<number> {
  const id = textOf(parseObject(await inputOf(terminal))?.['session_id'])
  if (id === '') return 0
  // Node loads its client at the first request, which is no wait for Governor.
  await fetch('data:,')
  try {
    const url = addressIn(call, terminal)
    const flags = url === undefined ? call.flags : { ...call.flags, url }
    const connection = connect(flags, terminal.env, AbortSignal.timeout(PATIENCE_MS))
    terminal.out(`${statusText(await askSession(connection, id))}\n`)
  } catch (error) {
    if (!(error instanceof CommandError)) throw error
  }
  return 0
}
