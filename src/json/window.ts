/**
 * A window on a body that is read from its beginning to its end: compiled code finds the ends of strings in it, 32 bytes
 * at a time, and checksums.
 *
 * What agents send is full of escaped quotes, and to search for the quote that ends a text is one call for each of them.
 * The code works on a memory of its own, to which the bytes are copied, window by window: a copy takes a tenth of what it
 * saves. Where a processor or a flag of Node's does not allow it, nothing of this is used.
 */
import { crc32 } from 'node:zlib'

/** The binary of window.wat. */
const CODE =
  'AGFzbQEAAAABDgJgAn9/AX9gA39/fwF/AwQDAAEABQMBAAMGCwJ/AUEAC38BQQALBzQGBm1lbW9yeQIABnN0cmluZwAABWRlcHRoAwAEcmVzdAMBCWNvbnRhaW5lcgABA3N1bQACCsEFA5sCAgJ7BX8CQANAIAAgAU8NASAA/QAAACECIAD9AAAQIQMgAv0MIiIiIiIiIiIiIiIiIiIiIv0j/WQgA/0MIiIiIiIiIiIiIiIiIiIiIv0j/WRBEHRyIQQgAv0MXFxcXFxcXFxcXFxcXFxcXP0j/WQgA/0MXFxcXFxcXFxcXFxcXFxcXP0j/WRBEHRyIQUgBEF/IAVBAXQgBkEfdnJzIAVBAnQgBkEednJycSEEAkADQCAERQ0BIAAgBGhqIQcgByEIAkADQCAIRQ0BIAhBAWstAABB3ABHDQEgCEEBayEIDAALCyAHIAhrQQFxRQRAIAcgAU8NBCAHQQFqDwsgBCAEQQFrcSEEDAALCyAFIQYgAEEgaiEADAALC0F/C3UBAn8gAiEEAkADQCAAJAEgACABTw0BIAAtAAAhAyAAQQFqIQAgA0EiRgRAIAAgARAAIQAgAEF/Rg0CDAELIANBIHIhAyADQfsARgRAIARBAWohBAwBCyADQf0ARw0AIARBAWshBCAEDQAgAA8LCyAEJABBfwurAgICfwR+AkADQCACIAFPDQEgAkGACGohAyADIAFLBEAgASEDC0KHla+vmLbem55/IQRCz9bTvtLHq9lCIQVC+fPd8Zn2masWIQZCxc/ZsvHluuonIQcDQCAEIAIpAACFQoeVr6+Ytt6bnn9+Qh2JIQQgBSACKQAIhUKHla+vmLbem55/fkIdiSEFIAYgAikAEIVCh5Wvr5i23puef35CHYkhBiAHIAIpABiFQoeVr6+Ytt6bnn9+Qh2JIQcgAkEgaiECIAIgA0kNAAsgBCAFQhGJhUKHla+vmLbem55/fiEEIAQgBkIfiYVCh5Wvr5i23puef34hBCAEIAdCL4mFQoeVr6+Ytt6bnn9+IQQgAEENdyAEIARCIIiFp3NBsfPd8XlsIQAMAAsLIAAL'

/** All offsets are in the memory. -1: not before `end`. */
interface Compiled {
  readonly memory: { readonly buffer: ArrayBuffer }
  /** Where the string ends whose text goes on `at`. */
  string(at: number, end: number): number
  /** Where the outermost ends of the `open` objects and arrays that `at` stands in. */
  container(at: number, end: number, open: number): number
  /** How many were open where it broke off, and where that was: at a string that does not end before `end`, or there. */
  readonly depth: { readonly value: number }
  readonly rest: { readonly value: number }
  /** Goes on with a checksum, over the bytes up to `end`, a multiple of {@link LINE}. */
  sum(sum: number, end: number): number
}

/** What is used of Node's WebAssembly, whose types come with those of browsers only. */
interface Engine {
  readonly Module: new (code: Uint8Array) => object
  readonly Instance: new (module: object) => { readonly exports: unknown }
}

/** `undefined` where the processor lacks the instructions, or Node was started without the compiler. */
function compile(): Compiled | undefined {
  try {
    const { Module, Instance } = Reflect.get(globalThis, 'WebAssembly') as Engine
    return new Instance(new Module(Buffer.from(CODE, 'base64'))).exports as Compiled
  } catch {
    return undefined
  }
}

const compiled = compile()
const memory = compiled && new Uint8Array(compiled.memory.buffer)

/** Bytes of the first window, and at most: each is twice as large as the one before, as mostly little is read. */
const FIRST = 8_192
const MOST = 131_072

/** What a checksum takes at a time, in bytes; the last of them are filled up. */
const LINE = 32

const BACKSLASH = 0x5c

/** The body that is being read, and what of it lies in the memory. */
let body: Buffer | undefined
let start = 0
let end = 0
let size = FIRST

/** Reads a body through windows. The bytes must not change meanwhile. */
export function throughWindows<T>(json: Buffer, read: () => T): T {
  if (!compiled) return read()
  body = json
  start = 0
  end = 0
  size = FIRST
  try {
    return read()
  } finally {
    body = undefined
  }
}

/** Is this the body that is read through windows? */
export function hasWindow(json: Buffer): boolean {
  return json === body
}

/** Makes the window begin `at`. */
function moveTo(json: Buffer, at: number): void {
  start = at
  end = Math.min(json.length, at + size)
  memory?.set(json.subarray(start, end))
  if (size < MOST) size *= 2
}

/** Where the string ends of which the text goes on `from`, not within an escape; -1 where it does not end. */
export function endOfString(json: Buffer, from: number): number {
  if (!compiled) return -1
  let at = from
  if (at < start || at >= end) moveTo(json, at)
  for (;;) {
    const found = compiled.string(at - start, end - start)
    if (found !== -1) return start + found
    if (end === json.length) return -1
    // The next window must not begin within an escape.
    let slashes = 0
    while (slashes < end - at && json[end - 1 - slashes] === BACKSLASH) slashes++
    at = end - (slashes % 2)
    moveTo(json, at)
  }
}

/** What {@link endOfContainer} returns where there is no end: of a string in it, by its quote, or of the whole. */
export type NoEnd = { readonly quote: number | undefined }

/** Where the object or array ends that begins `at`. */
export function endOfContainer(json: Buffer, at: number): number | NoEnd {
  if (!compiled) return { quote: undefined }
  let from = at
  let open = 0
  while (from < json.length) {
    if (from < start || from >= end) moveTo(json, from)
    const found = compiled.container(from - start, end - start, open)
    if (found !== -1) return start + found
    open = compiled.depth.value
    const quote = start + compiled.rest.value
    from = quote < end ? endOfString(json, quote + 1) : end
    if (from === -1) return { quote }
  }
  return { quote: undefined }
}

/** A checksum can be gone on with after a multiple of so many bytes. */
export const SUM_BLOCK = 1024

/**
 * Goes on with a checksum, 0 at first, over the bytes between two offsets. Processes with and without the compiled code make
 * different ones: what is sent again to one of the other kind is not known there to be the same.
 */
export function checksum(json: Buffer, from: number, to: number, sum: number): number {
  if (!compiled || !memory) return crc32(json.subarray(from, to), sum)
  let sumSoFar = sum
  for (let at = from; at < to; at += MOST) {
    const length = Math.min(MOST, to - at)
    const filled = Math.ceil(length / LINE) * LINE
    memory.set(json.subarray(at, at + length))
    memory.fill(0, length, filled)
    sumSoFar = compiled.sum(sumSoFar, filled)
  }
  // The window has gone.
  end = start
  return sumSoFar >>> 0
}
