/** Finds the lines of keys and values in a YAML file, for messages. */
import { type Document, isMap, isNode, isScalar, isSeq, type LineCounter } from 'yaml'

/** Returns the 1-based line of the value at `path`, or of its nearest existing parent; `undefined` if there is none. */
export type LineFinder = (path: readonly PropertyKey[]) => number | undefined

interface Place {
  /** The node of the key, or of the item in a list. */
  readonly mark: unknown
  readonly value: unknown
}

function placeIn(node: unknown, key: PropertyKey): Place | undefined {
  if (isSeq(node)) {
    const item = node.items[Number(key)]
    return item === undefined ? undefined : { mark: item, value: item }
  }
  if (!isMap(node)) return undefined
  const pair = node.items.find(
    (candidate) => isScalar(candidate.key) && String(candidate.key.value) === String(key),
  )
  return pair && { mark: pair.key, value: pair.value }
}

/** Returns the line finder of a parsed document. */
export function lineFinder(document: Document, lines: LineCounter): LineFinder {
  return (path) => {
    let node: unknown = document.contents
    let offset: number | undefined
    for (const key of path) {
      const place = placeIn(node, key)
      if (!place) break
      if (isNode(place.mark)) offset = place.mark.range?.[0] ?? offset
      node = place.value
    }
    return offset === undefined ? undefined : lines.linePos(offset).line
  }
}
