/** The states of a session, by their names in the API. */

/** How urgent a state is, for its colour. */
export type Tone = 'bad' | 'warn' | 'good' | 'quiet'

/** The groups of a list, in their order. */
export const GROUPS = ['Need you', 'Failed', 'Working', 'Waiting', 'Ended'] as const

/** The word for a state, its tone, and its group. */
export const STATES = {
  asking: ['asks', 'warn', 'Need you'],
  failed: ['failed', 'bad', 'Failed'],
  working: ['working', 'good', 'Working'],
  going_round: ['looping', 'bad', 'Need you'],
  slowed: ['slowed', 'warn', 'Working'],
  near_limit: ['near limit', 'warn', 'Working'],
  answered: ['answered', 'quiet', 'Waiting'],
  idle: ['idle', 'quiet', 'Waiting'],
  stopped: ['stopped', 'quiet', 'Ended'],
  completed: ['done', 'quiet', 'Ended'],
} as const satisfies Readonly<Record<string, readonly [word: string, tone: Tone, group: (typeof GROUPS)[number]]>>
