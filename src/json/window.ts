/**
 * A window on a body that is read from its beginning to its end: compiled code finds the ends of strings in it, 32 bytes
 * at a time.
 *
 * What agents send is full of escaped quotes, and to search for the quote that ends a text is one call for each of them.
 * The code works on a memory of its own, to which the bytes are copied, window by window: a copy takes a tenth of what it
 * saves. Where a processor or a flag of Node's does not allow it, nothing of this is used.
 */

/** The binary of window.wat. */
const CODE =
  'AGFzbQEAAAABDgJgAn9/AX9gA39/fwF/AwMCAAEFAwEAAwYLAn8BQQALfwFBAAsHLgUGbWVtb3J5AgAGc3RyaW5nAAAFZGVwdGgDAARyZXN0AwEJY29udGFpbmVyAAEKlAMCmwICAnsFfwJAA0AgACABTw0BIAD9AAAAIQIgAP0AABAhAyAC/QwiIiIiIiIiIiIiIiIiIiIi/SP9ZCAD/QwiIiIiIiIiIiIiIiIiIiIi/SP9ZEEQdHIhBCAC/QxcXFxcXFxcXFxcXFxcXFxc/SP9ZCAD/QxcXFxcXFxcXFxcXFxcXFxc/SP9ZEEQdHIhBSAEQX8gBUEBdCAGQR92cnMgBUECdCAGQR52cnJxIQQCQANAIARFDQEgACAEaGohByAHIQgCQANAIAhFDQEgCEEBay0AAEHcAEcNASAIQQFrIQgMAAsLIAcgCGtBAXFFBEAgByABTw0EIAdBAWoPCyAEIARBAWtxIQQMAAsLIAUhBiAAQSBqIQAMAAsLQX8LdQECfyACIQQCQANAIAAkASAAIAFPDQEgAC0AACEDIABBAWohACADQSJGBEAgACABEAAhACAAQX9GDQIMAQsgA0EgciEDIANB+wBGBEAgBEEBaiEEDAELIANB/QBHDQAgBEEBayEEIAQNACAADwsLIAQkAEF/Cw=='

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
