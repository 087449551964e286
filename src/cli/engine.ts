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
  // Some seconds after the last request, V8 begins to collect for the least memory: that also forgets what objects of each
  // kind look like while there is none, and with it all code that was optimised for them. In ms: longer than a person thinks.
  '--gc-memory-reducer-start-delay-ms=600000',
]

/** To be called once, before anything else is loaded: V8 plans its first rest at its first collection. */
export function tuneEngine(): void {
  for (const flag of FLAGS) setFlagsFromString(flag)
}
