/** Members of `Dialect` and of `DialectRequest` that are the same for all APIs whose bodies have such fields. */
import { decode, member, members, root } from '../../json/scan.ts'
import type { Dialect, DialectRequest, IndexedList } from '../dialect.ts'
import { withoutLongContext } from './beta.ts'
import { withLowerOutput } from './output-cap.ts'
import { demandsIn, forcedTools, formatIn } from './output-demands.ts'
import { sessionIdAt } from './session-id.ts'
import { openAnswer, openFilter, openText, type Part, type StreamDialect } from './stream-engine.ts'
import { dropTools } from './tools.ts'
import { writtenCharacters } from './usage-text.ts'

/** The members of a dialect whose request bodies have the fields `model` and `stream`. */
export function dialectMembers<P extends Part, S>(stream: StreamDialect<P, S>) {
  return {
    modelOf({ body }) {
      const value = member(members(body, root(body)), 'model')?.value
      const model = value && decode(body, value)
      return typeof model === 'string' ? model : undefined
    },
    withLowerOutput,
    withoutLongContext,
    writtenCharacters,
    openStream: (dropCalls, isJson, mayHaveFooter) => openAnswer(stream, dropCalls, isJson, mayHaveFooter),
    openFilter: () => openFilter(stream),
    openText: () => openText(stream),
  } as const satisfies Partial<Dialect>
}

/** The members of a request that read what it demands and offers. */
export function requestMembers(index: IndexedList) {
  return {
    index,
    sessionIdAt: (path) => sessionIdAt(index, path),
    demands: () => demandsIn(index),
    hasFormat: () => formatIn(index) !== undefined,
    forcedTools: () => forcedTools(index),
    dropTools: (drop, instead) => dropTools(index, drop, instead),
  } as const satisfies Partial<DialectRequest>
}
