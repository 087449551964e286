/** The states of a session, by their names in the API. */

/** How urgent a state is, for its colour. */
export type Tone = 'bad' | 'warn' | 'good' | 'quiet'

/** The word for a state, its tone, and its place in the groups of a list. */
export const STATES = {
  asking: ['asks', 'warn', 0],
  working: ['working', 'good', 1],
  going_round: ['looping', 'bad', 0],
  near_limit: ['near limit', 'warn', 1],
  answered: ['answered', 'quiet', 2],
  idle: ['idle', 'quiet', 2],
  stopped: ['stopped', 'quiet', 3],
  completed: ['done', 'quiet', 3],
  no_response: ['no answer', 'bad', 3],
  context_overflow: ['overflow', 'bad', 3],
} as const satisfies Readonly<Record<string, readonly [word: string, tone: Tone, group: number]>>
