/** Gemini responses that are not rewritten as a stream: what is read of them, and how they end a run. */
import { type Json, objectIn, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { type TokenUsage, withTotal } from '../../core/usage.ts'
import { applyEdits } from '../../json/edit.ts'
import { dataFrame } from '../../sse/frames.ts'
import type { BlockedMessage, Dialect } from '../dialect.ts'
import { hasError } from '../shared/event-types.ts'
import { lastText, objectsUnder, textsUnder } from '../shared/response-tail.ts'
import { addUsage, tokens } from '../shared/stated-usage.ts'
import { streamReply } from '../shared/whole-response.ts'
import {
  bufferedCallsOf,
  type ChunkChange,
  callsIn,
  candidatesOf,
  chunkEdits,
  chunksAt,
  chunksOf,
  isCutOff,
  rawParts,
  reasonOf,
  textOfChunk,
  textPart,
  unsignedAfter,
} from './chunk.ts'
import { isCall, textOfParts } from './parts.ts'

/** Returns the tokens of audio in the details of a count. */
function audioIn(details: unknown): number | undefined {
  const ofAudio = (Array.isArray(details) ? details : []).filter((one) => propertyOf(one, 'modality') === 'AUDIO')
  return tokens(...ofAudio.map((one) => propertyOf(one, 'tokenCount')))
}

/** Reads `usageMetadata`; `undefined` if it states no tokens. */
function tokenUsage(usage: Json | undefined): TokenUsage | undefined {
  if (!usage) return undefined
  const count = (name: string) => tokens(usage[`${name}TokenCount`])
  const total = count('total')
  const [prompt, output, reasoning] = [count('prompt'), count('candidates'), count('thoughts')]
  if (prompt === undefined && output === undefined && total === undefined) return undefined
  const audio = audioIn(usage['promptTokensDetails'])
  const cachedAudio = audioIn(usage['cacheTokensDetails']) ?? 0
  const parts = {
    // Results of tools that the provider ran are stated beside the prompt.
    input: (prompt ?? 0) + (count('toolUsePrompt') ?? 0),
    output: (output ?? 0) + (reasoning ?? 0),
    cachedInput: tokens(usage['cachedContentTokenCount']),
    audioInput: audio && Math.max(0, audio - cachedAudio),
    audioOutput: audioIn(usage['candidatesTokensDetails']),
    reasoning,
  }
  return withTotal(parts, total)
}

/** Returns the members that all chunks of a response share. */
export function envelopeOf({ modelVersion, responseId }: Json): Json {
  return { modelVersion, responseId }
}

/** Returns a chunk with a part of text, or the last chunk of a response. */
export function textChunk(text: string, ends: boolean): Json {
  const candidate = { content: { parts: [{ text }], role: 'model' }, index: 0 }
  return { candidates: [ends ? { ...candidate, finishReason: 'STOP' } : candidate] }
}

/** Returns the contents (JSON texts) that a blocked message adds to the input: its own, and the results. */
export function contentsAfterBlock({ buffered, results }: BlockedMessage): string[] {
  const parts = buffered.calls.map(({ id, name }, at) => ({
    functionResponse: { ...(id === '' ? {} : { id }), name, response: { error: results[at] } },
  }))
  return [`{"role":"model","parts":${textOf(buffered.message)}}`, JSON.stringify({ role: 'user', parts })]
}

/** A call. Text of the model can't match, as its quotes are escaped. */
const CALL = /"functionCall"\s{0,4}:\s{0,4}\{/
const REASON = /"(?:finish|block)Reason"\s{0,4}:\s{0,4}"[A-Z_]{1,64}"/
/** An error that breaks into a stream, and is no event of it. */
const FAILED = /^\{\s{0,8}"error"\s{0,4}:\s{0,4}\{/m

/** Returns a whole body after a change: `first` of its first chunk, `last` of the last one, `all` of each. */
function rewritten(body: Buffer, all: ChunkChange, first: ChunkChange, last: ChunkChange): Buffer {
  const spans = chunksAt(body)
  const chunks = chunksOf(body)
  let calls = 0
  const edits = spans.flatMap((span, at) => {
    const change = { ...all, ...(at === 0 ? first : {}), ...(at === spans.length - 1 ? last : {}) }
    const made = chunkEdits(body, span, change, calls)
    calls += callsIn(chunks[at] ?? {}).length
    return made
  })
  return applyEdits(body, edits)
}

/** Returns the sum of the usage of a body and those before it; `undefined` if there are none. */
function usageSum(body: Buffer, earlier: readonly Buffer[]): unknown {
  if (earlier.length === 0) return undefined
  let sum: unknown
  // Of several chunks of a response the last one counts.
  for (const one of [...earlier, body])
    sum = addUsage(sum, chunksOf(one).findLast((chunk) => 'usageMetadata' in chunk)?.['usageMetadata'])
  return sum
}

export const geminiReplies = {
  metadata({ tail }) {
    const usage = objectsUnder(tail, 'usageMetadata').at(-1)
    const tier = textOf(usage?.['serviceTier']) || textOf(usage?.['trafficType']).replace('ON_DEMAND_', '')
    return { usage: tokenUsage(usage), bill: { model: lastText(tail, 'modelVersion'), tier: tier.toLowerCase() } }
  },
  callsNothing({ tail }) {
    // The reason does not say whether there are calls.
    const text = tail.toString('latin1')
    return REASON.test(text) && !CALL.test(text)
  },
  marks: {
    call: '"functionCall"',
    callIds(line) {
      const chunk = parseObject(line.slice(line.indexOf('{'))) ?? {}
      return callsIn(chunk).flatMap((part) => textOf(objectIn(part, 'functionCall')['id']) || [])
    },
    end(piece) {
      if (hasError(piece) || (piece.includes('"error"') && FAILED.test(piece))) return 'failed'
      return REASON.test(piece) ? 'whole' : undefined
    },
  },
  responseFacts: ({ tail }) => ({
    id: lastText(tail, 'responseId'),
    model: lastText(tail, 'modelVersion'),
    finishReasons: textsUnder(tail, 'finishReason').slice(-1),
  }),
  readAnswer(body) {
    const chunks = chunksOf(body)
    const isFailed = chunks.some((chunk) => 'error' in chunk)
    if (!isFailed && !chunks.some((chunk) => 'candidates' in chunk || 'promptFeedback' in chunk)) return undefined
    const buffered = bufferedCallsOf(chunksAt(body).flatMap((span) => rawParts(body, span)))
    const { text, calls } = buffered
    const isTruncated = isCutOff(chunks.map(reasonOf).findLast((reason) => reason !== '') ?? '')
    return {
      text,
      calls,
      end: isFailed ? 'failed' : isTruncated ? 'truncated' : 'complete',
      buffered: chunks.every((chunk) => candidatesOf(chunk).length < 2) ? buffered : undefined,
    }
  },
  writeAnswer(body, { terminal, dropCalls, text, footer, earlier }) {
    const isReplaced = (part: Json) => text !== undefined && textOfParts([part]) !== ''
    const all = dropCalls ? { isAnswer: true, keeps: (part: Json) => !isCall(part) && !isReplaced(part) } : {}
    const after = text === undefined ? [] : [textPart(text)]
    const places = chunksOf(body)
    const shown = text === undefined ? places.findLastIndex((chunk) => textOfChunk(chunk) !== '') : -1
    const isLast = shown === -1 || shown === places.length - 1
    const last = { after, footer: isLast ? footer : undefined, usage: usageSum(body, earlier), governor: terminal }
    const written = rewritten(body, all, {}, last)
    if (isLast || footer === undefined) return written
    const span = chunksAt(written)[shown]
    return span ? applyEdits(written, chunkEdits(written, span, { footer })) : written
  },
  withoutCalls(body, blocked, earlier, isJson) {
    const before: string[] = []
    for (const one of isJson ? [] : earlier) {
      for (const span of chunksAt(one))
        before.push(...rawParts(one, span).filter((part) => !isCall(parseObject(part) ?? {})))
      // Clients read all texts as one.
      if (chunksOf(one).some((chunk) => textOfChunk(chunk) !== '')) before.push(textPart('\n\n'))
    }
    const unsigned = unsignedAfter(chunksOf(body).flatMap(callsIn), blocked)
    const keeps = (part: Json, call: number) => !isCall(part) || !blocked.has(call)
    return rewritten(body, { keeps, unsigned }, { before }, { usage: usageSum(body, earlier) })
  },
  reply({ text, model: modelVersion, terminal: governor }, streams, responseId) {
    const usageMetadata = { promptTokenCount: 0, candidatesTokenCount: 0, totalTokenCount: 0 }
    const chunk = JSON.stringify({ ...textChunk(text, true), usageMetadata, modelVersion, responseId, governor })
    if (streams === true) return streamReply([dataFrame(chunk)])
    return { contentType: 'application/json', body: Buffer.from(streams === 'list' ? `[${chunk}]` : chunk) }
  },
} as const satisfies Partial<Dialect>
