/** A client's kept-alive connection that does next to nothing: it finds the end of an answer and keeps its head. */
import net from 'node:net'

const HEAD_END = Buffer.from('\r\n\r\n')
const LAST_CHUNK = Buffer.from('\r\n0\r\n\r\n')

export class Connection {
  #socket
  #settle
  #onData
  #pending
  #missing
  #tail

  /** The head of the newest answer, in Latin-1. */
  head = ''

  constructor(socket) {
    this.#socket = socket
    socket.setNoDelay(true)
    socket.on('data', (chunk) => this.#take(chunk))
    socket.on('error', (error) => this.#settle?.reject(error))
    socket.on('close', () => this.#settle?.reject(new Error('the connection was closed before the answer ended')))
  }

  static open(port) {
    return new Promise((resolve, reject) => {
      const socket = net.connect(port, '127.0.0.1')
      socket.once('error', reject)
      socket.once('connect', () => {
        socket.off('error', reject)
        resolve(new Connection(socket))
      })
    })
  }

  /** Sends a request and settles when its answer is complete. `onData` sees the bytes of the answer as they come. */
  send(bytes, onData) {
    this.head = ''
    this.#pending = undefined
    this.#onData = onData
    return new Promise((resolve, reject) => {
      this.#settle = { resolve, reject }
      this.#socket.write(bytes)
    })
  }

  close() {
    this.#settle = undefined
    this.#socket.destroy()
  }

  #take(chunk) {
    this.#onData?.(chunk)
    if (this.head === '') this.#takeHead(this.#pending ? Buffer.concat([this.#pending, chunk]) : chunk)
    else this.#takeBody(chunk)
  }

  #takeHead(bytes) {
    const end = bytes.indexOf(HEAD_END)
    if (end === -1) {
      this.#pending = bytes
      return
    }
    this.head = bytes.latin1Slice(0, end)
    const length = /\r\ncontent-length: *(\d+)/i.exec(this.head)?.[1]
    this.#missing = length === undefined ? undefined : Number(length)
    this.#tail = bytes.subarray(end, end + 4)
    this.#takeBody(bytes.subarray(end + 4))
  }

  #takeBody(chunk) {
    if (this.#missing === undefined) this.#takeChunked(chunk)
    else {
      this.#missing -= chunk.length
      if (this.#missing <= 0) this.#finish()
    }
  }

  /** Event streams hold no CR, so that what looks like the last chunk is the last chunk. */
  #takeChunked(chunk) {
    const end = Buffer.concat([this.#tail, chunk.subarray(-LAST_CHUNK.length)]).subarray(-LAST_CHUNK.length)
    if (end.equals(LAST_CHUNK)) this.#finish()
    else this.#tail = end
  }

  #finish() {
    const { resolve, reject } = this.#settle
    this.#settle = undefined
    if (this.head.startsWith('HTTP/1.1 200')) resolve()
    else reject(new Error(`not answered with 200:\n${this.head}`))
  }
}
