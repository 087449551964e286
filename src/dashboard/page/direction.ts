/** Keeps texts that agents choose, such as names of models and tools, from turning round the text beside them. */
import { options } from 'preact'

/** Characters that change the direction of all text after them. */
const TURNING = /[\u202a-\u202e\u2066-\u2069]+/g

function straight(part: unknown): unknown {
  if (typeof part === 'string') return part.replaceAll(TURNING, (all) => '·'.repeat(all.length))
  return Array.isArray(part) ? part.map(straight) : part
}

/** From here on the page draws a dot for each such character; what was said stands in blocks of its own, as it is. */
export function keepDirection(): void {
  options.vnode = ({ type, props }) => {
    if (type !== 'pre' && props.children !== undefined)
      props.children = straight(props.children) as typeof props.children
  }
}
