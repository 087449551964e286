/** The size of sessions in memory. */
import type { Session, Thread } from '../core/session/session.ts'

/** Bytes of a hash and its place in an array, roughly. */
const BYTES_PER_HASH = 96
const BYTES_PER_THREAD = 512
/** Bytes of the loop state: a window of calls and results, and hashes of messages. */
const BYTES_PER_LOOP_STATE = 8_192
/** Bytes of a pending call. */
const BYTES_PER_CALL = 384

function sizeOfThread({ userMessageHashes, responses, continuedFrom, loopState, run }: Thread): number {
  const hashes =
    userMessageHashes.length + run.recentRequests.length + (responses?.length ?? 0) + (continuedFrom?.length ?? 0)
  let size = BYTES_PER_THREAD + hashes * BYTES_PER_HASH
  if (loopState) size += BYTES_PER_LOOP_STATE + (loopState.pendingCalls?.length ?? 0) * BYTES_PER_CALL
  if (run.finalAnswer) size += run.finalAnswer.text.length * 2
  return size
}

/** Bytes of an iteration, or of a run that is over, that is kept for people to read. */
const BYTES_PER_RECORD = 256

/** Returns the bytes that a session takes in memory, roughly. */
export function sizeOfSession({ threads, contexts, record }: Session): number {
  let size = BYTES_PER_THREAD + (contexts?.reductions.length ?? 0) * BYTES_PER_CALL
  if (record) size += (record.iterations.length + record.runs.length) * BYTES_PER_RECORD
  for (const thread of threads) size += sizeOfThread(thread)
  return size
}
