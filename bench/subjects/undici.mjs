/** A proxy on undici's dispatch that reads the body whole, as whoever wants to look at it must, and does not look. */
import http from 'node:http'
import { Agent } from 'undici'

const [port, upstreamPort] = process.argv.slice(2).map(Number)
const agent = new Agent()
const origin = `http://127.0.0.1:${upstreamPort}`

function send({ method, url: path, headers }, body, response) {
  const { connection: _connection, ...kept } = headers
  agent.dispatch(
    { origin, method, path, headers: kept, body },
    {
      onRequestStart() {},
      onResponseStart(_, status, answerHeaders) {
        response.writeHead(status, answerHeaders)
      },
      onResponseData(_, chunk) {
        response.write(chunk)
      },
      onResponseEnd() {
        response.end()
      },
      onResponseError() {
        response.destroy()
      },
    },
  )
}

const server = http.createServer({ keepAliveTimeout: 75_000 }, (request, response) => {
  const chunks = []
  request.on('data', (chunk) => chunks.push(chunk))
  request.on('end', () => send(request, Buffer.concat(chunks), response))
})
server.listen(port, '127.0.0.1')
