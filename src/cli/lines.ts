/** The lines of a file or of standard input. */

/**
 * Yields the lines of a text in UTF-8, without a byte order mark. Only a line feed ends a line: to Node's `readline`
 * U+2028 does so too, which JSON may hold as it is.
 */
export async function* linesOf(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder()
  let line = ''
  for await (const chunk of chunks) {
    const [rest = '', ...lines] = decoder.decode(chunk, { stream: true }).split('\n')
    line += rest
    for (const next of lines) {
      yield line
      line = next
    }
  }
  if (line !== '') yield line
}
