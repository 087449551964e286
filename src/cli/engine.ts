/** How V8 treats this process, which runs for weeks, with pauses in between. */
import { setFlagsFromString } from 'node:v8'

/**
 * Set from inside, so that every way of starting gets them. Each is looked at when the collector needs it, not only when
 * V8 starts; a version that does not know one goes on without it.
 */
const FLAGS = [
  // Else code that has not run between a few collections is forgotten, and compiled again when the next agent comes.
  '--no-flush-bytecode',
  // Bodies of requests count as growth of the heap, which is small: without room for them, all that is alive is walked
  // again for every few of them.
  '--heap-growing-percent=150',
]

/** To be called once, before anything is listened on. */
export function tuneEngine(): void {
  for (const flag of FLAGS) setFlagsFromString(flag)
}
