/** The states of a session, by their names in the API. */

/** How urgent a state is, for its colour. */
export type Tone = 'bad' | 'warn' | 'good' | 'quiet'

/** The groups of a list, in their order, by their names in the API. */
export const GROUP_NAMES = {
  need_you: 'Need you',
  failed: 'Failed',
  working: 'Working',
  waiting: 'Waiting',
  ended: 'Ended',
} as const
export type Group = (typeof GROUP_NAMES)[keyof typeof GROUP_NAMES]
export const GROUPS: readonly Group[] = Object.values(GROUP_NAMES)

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
} as const satisfies Readonly<Record<string, readonly [word: string, tone: Tone, group: Group]>>

/** The longest text of a search, and the longest name, in characters. */
export const MOST_SEARCHED = 4_096
