/** Sets flags of V8 for a process that runs for weeks and is often idle, however it is started. */
import nodeModule from 'node:module'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'

/** V8 reads a flag when its collector needs it, not only at its start, and ignores one that it does not know. */
const FLAGS = [
  // Without it, V8 drops code that did not run between a few collections, and compiles it again for the next agent.
  '--no-flush-bytecode',
  // Request bodies count as growth of the heap, which is small: without room for them, V8 marks all live objects again
  // after every few bodies.
  '--heap-growing-percent=150',
  // Some seconds after the last request, V8 begins to save memory, and then also drops the hidden classes of objects
  // and the code that was optimised for them. In ms: longer than a human thinks between two messages.
  '--gc-memory-reducer-start-delay-ms=600000',
  // Where many small objects waited for Redis, V8 makes the next ones in the old generation at once. From there even
  // those that nobody needs keep the bodies of their requests, and V8 collects the whole heap several times a second.
  '--no-allocation-site-pretenuring',
]

/** Sets the flags. Call it once, before any other module is loaded, because V8 plans ahead at its first collection. */
export function tuneEngine(): void {
  for (const flag of FLAGS) setFlagsFromString(flag)
  // Node 22.1 and newer keep the code that a start compiles. Not in the folder for temporary files, which is Node's
  // default: other users could put code there. Nothing happens where the folder can't be written.
  try {
    Reflect.get(nodeModule, 'enableCompileCache')?.(join(homedir(), '.cache', 'governor'))
  } catch {
    // A user of a container may have no home folder.
  }
}
