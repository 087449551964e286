/** What processes use, read from /proc, so that a subject needs no code in it and may be written in any language. */
import { closeSync, openSync, readdirSync, readFileSync, readSync } from 'node:fs'

const KB = 1024
const NS_PER_US = 1000

function read(path) {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    // Processes and threads come and go between the listing and the reading.
    return ''
  }
}

/** A process and all that it started. */
export function processTree(pid) {
  const children = read(`/proc/${pid}/task/${pid}/children`).split(' ').filter(Boolean).map(Number)
  return [pid, ...children.flatMap(processTree)]
}

/** Reads the CPU time of processes often and cheaply. Threads that begin later are not seen. */
export class CpuMeter {
  #files
  #buffer = Buffer.alloc(64)

  constructor(pids) {
    const threads = pids.flatMap((pid) => readdirSync(`/proc/${pid}/task`).map((id) => `/proc/${pid}/task/${id}`))
    this.#files = threads.map((thread) => openSync(`${thread}/schedstat`))
  }

  /** CPU time of all threads since they began, user and system, in microseconds. */
  read() {
    return this.#files.reduce((sum, file) => {
      const length = readSync(file, this.#buffer, 0, this.#buffer.length, 0)
      return sum + Number.parseInt(this.#buffer.latin1Slice(0, length), 10) / NS_PER_US
    }, 0)
  }

  close() {
    for (const file of this.#files) closeSync(file)
  }
}

function memoryOf(pids, field) {
  return pids.reduce((sum, pid) => {
    const [, kilobytes = '0'] = new RegExp(`^${field}:\\s+(\\d+) kB`, 'm').exec(read(`/proc/${pid}/status`)) ?? []
    return sum + Number(kilobytes) * KB
  }, 0)
}

/** Memory that processes hold, in bytes. */
export function residentMemory(pids) {
  return memoryOf(pids, 'VmRSS')
}

/** The most memory that processes have held since they were started, in bytes. */
export function peakMemory(pids) {
  return memoryOf(pids, 'VmHWM')
}
