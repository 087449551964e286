/**
 * What is sent to a proxy, and what Governor finds in it. One more thing that Governor can do with a request is one
 * more entry here and one more row in subjects.mjs.
 */
import { STAMP } from './bodies.mjs'

/**
 * `isCold`: every request is the only one of its session; else sessions send a few growing requests each.
 * `repeated`: so many equal calls stand at the end, in one request after the other. `headers`: added to a request that
 * holds the transcript up to iteration number `iteration`; the provider takes `x-bench-answer: calls` for a wish to be
 * answered with that call.
 * `verdict`: what Governor must have decided on the last request of a session, or the measure is void.
 */
export const SITUATIONS = {
  quiet: { verdict: 'allow' },
  cold: { isCold: true, verdict: 'allow' },
  named: { headers: () => ({ 'x-governor-session': `session-${STAMP}` }), verdict: 'allow' },
  notice: { headers: (iteration) => ({ 'x-governor-max-iterations': iteration + 3 }), verdict: 'warn' },
  block: { isCold: true, repeated: [3, 4], headers: () => ({ 'x-bench-answer': 'calls' }), verdict: 'block' },
  stop: { isCold: true, headers: () => ({ 'x-governor-max-iterations': 1 }), verdict: 'stop' },
}
