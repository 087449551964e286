/** The least a proxy in Node can be: two streams piped into each other, bodies never looked at. */
import http from 'node:http'

const [port, upstreamPort] = process.argv.slice(2).map(Number)
const agent = new http.Agent({ keepAlive: true })

const server = http.createServer({ keepAliveTimeout: 75_000 }, (request, response) => {
  const { method, url: path, headers } = request
  const onward = http.request({ agent, host: '127.0.0.1', port: upstreamPort, method, path, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers)
    answer.pipe(response)
  })
  onward.on('error', () => response.destroy())
  request.pipe(onward)
})
server.listen(port, '127.0.0.1')
