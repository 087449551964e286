/** Handles requests whose body has no room in memory: the body is not read, and a stopped run stays stopped. */
import { pipeline, Readable } from 'node:stream'
import { textWithFooter } from '../../core/footer.ts'
import { hashOf } from '../../core/hash.ts'
import type { FinalAnswer } from '../../core/terminal.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { decoderFor } from '../../http/body.ts'
import { contentEncoding, headerOf, type RawHeaders } from '../../http/headers.ts'
import { reply } from '../../http/response.ts'
import { sessionKey } from '../../store/store.ts'
import type { Exchange } from '../begin-exchange.ts'
import { terminalHeaders } from '../final-answer.ts'
import type { Services } from '../services.ts'
import { sessionInHeaders, tenantOf, threadNameOf } from '../session/identity.ts'

/** A stopped run that was found by the headers of a request alone. */
interface StoppedRun {
  readonly session: string
  readonly answer: FinalAnswer
}

async function stoppedRun(
  services: Services,
  headers: RawHeaders,
  target: string,
): Promise<StoppedRun | undefined> {
  const session = sessionInHeaders(headers, services.identity)
  if (session === undefined) return undefined
  const tenant = tenantOf(headers, target, services.credentialPlaces)
  const known = await services.store.get(sessionKey(tenant, hashOf(session)))
  const thread = threadNameOf(headers, services.identity)
  const answer = known?.threads.findLast(({ name }) => name === thread)?.run.finalAnswer
  return answer && { session, answer }
}

/** How many characters of a chunk are searched again with the next one: more than the length of the field that asks for a stream. */
const SEAM = 64

/** Returns whether a request asks for server-sent events. Keeps none of its body, and reads at most `max` bytes. */
async function asksForStream(
  { route, request: { rawHeaders: headers } }: Exchange,
  dialect: Dialect,
  body: Readable,
  max: number,
): Promise<boolean> {
  if (/event-stream/i.test(headerOf(headers, 'accept') ?? '')) return true
  const coding = contentEncoding(headers)
  const decoder = coding === 'identity' ? undefined : decoderFor(coding)
  if (coding !== 'identity' && !decoder) return false
  const plain: AsyncIterable<Buffer> = decoder ? pipeline(body, decoder, () => undefined) : body
  let seam = ''
  let length = 0
  try {
    for await (const chunk of plain) {
      length += chunk.length
      const text = seam + chunk.toString('latin1')
      if (dialect.asksForStream(route.asked, text)) return true
      if (length > max) return false
      seam = text.slice(-SEAM)
    }
  } catch {
    // The body broke off, or its content coding is not the one that it states.
  }
  return false
}

/** Answers a request of a stopped run with its recorded answer. Returns false if there is none, or if the store fails. */
export async function answerWithoutRoom(
  services: Services,
  exchange: Exchange,
  dialect: Dialect,
  body: Buffer | Readable,
): Promise<boolean> {
  const headers = exchange.request.rawHeaders
  const stopped = await stoppedRun(services, headers, exchange.route.path).catch(() => undefined)
  if (!stopped) return false
  const { session, answer } = stopped
  const stream = Buffer.isBuffer(body) ? Readable.from([body]) : body
  const streams = await asksForStream(exchange, dialect, stream, services.maxGuardedBody)
  stream.destroy()
  services.emit({ kind: 'answer_repeated' })
  exchange.noteVerdict('stop')
  const made = dialect.reply(
    { ...answer, text: textWithFooter(answer) },
    streams,
    services.newId(),
    services.now(),
  )
  reply(exchange.response, 200, made.contentType, made.body, {
    'x-governor-verdict': 'stop',
    'x-governor-session': session,
    'x-governor-loop': answer.loop,
    ...terminalHeaders(answer.terminal),
  })
  return true
}
