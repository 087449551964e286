/**
 * The gateway one would write with Fastify: parses the body, looks at the messages, sends it on. `parse` sends the
 * bytes that came, `reserialise` what JSON.stringify makes of them.
 */
import fastify from 'fastify'
import { request } from 'undici'

const [port, upstreamPort, way] = process.argv.slice(2)
const app = fastify({ bodyLimit: 64 * 1024 * 1024 })

app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_, bytes, done) => {
  done(null, { bytes, value: JSON.parse(bytes.toString()) })
})

app.post('/v1/chat/completions', async ({ body, headers }, reply) => {
  const { host: _host, connection: _connection, 'content-length': _length, ...kept } = headers
  const iterations = body.value.messages.filter(({ role }) => role === 'assistant').length
  const answer = await request(`http://127.0.0.1:${upstreamPort}/v1/chat/completions`, {
    method: 'POST',
    headers: kept,
    body: way === 'parse' ? body.bytes : JSON.stringify(body.value),
  })
  const { 'transfer-encoding': _coding, connection: _kept, ...answerHeaders } = answer.headers
  reply.code(answer.statusCode).headers(answerHeaders).header('x-iterations', iterations)
  return reply.send(answer.body)
})

await app.listen({ host: '127.0.0.1', port: Number(port) })
