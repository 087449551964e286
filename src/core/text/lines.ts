/**
 * Yields the lines of a text in UTF-8, without a byte order mark. Only a line feed ends a line: from Node 24 on,
 * `readline` takes U+2028 for an end too, which JSON may hold as it is (nodejs/node#57591).
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
