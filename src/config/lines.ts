/** Where things stand in a YAML file, for messages. */
import { type Document, isMap, isNode, isScalar, isSeq, type LineCounter } from 'yaml'

/** The line of what stands at a path, counted from 1; where there is no such thing, of what it would stand in. */
export type LineFinder = (path: readonly PropertyKey[]) => number | undefined

interface Place {
  /** The key, or the item of a list. */
  readonly mark: unknown
  readonly value: unknown
}

function placeIn(node: unknown, key: PropertyKey): Place | undefined {
  if (isSeq(node)) {
    const item = node.items[Number(key)]
    return item === undefined ? undefined : { mark: item, value: item }
  }
  if (!isMap(node)) return undefined
  const pair = node.items.find(({ key: own }) => isScalar(own) && String(own.value) === String(key))
  return pair && { mark: pair.key, value: pair.value }
}

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
