/** The states of a session, by their names in the API. */

/** How urgent a state is, for its colour. */
export type Tone = 'bad' | 'warn' | 'good' | 'quiet'

/** The word for a state, its tone, and its place in the groups of a list. */
export const STATES = {
  asking: ['asks', 'warn', 0],
  failed: ['failed', 'bad', 1],
  working: ['working', 'good', 2],
  going_round: ['looping', 'bad', 0],
  near_limit: ['near limit', 'warn', 2],
  answered: ['answered', 'quiet', 3],
  idle: ['idle', 'quiet', 3],
  stopped: ['stopped', 'quiet', 4],
  completed: ['done', 'quiet', 4],
} as const satisfies Readonly<Record<string, readonly [word: string, tone: Tone, group: number]>>
