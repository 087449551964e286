/** Why requests are relayed although Governor cannot guard them, or only in part, and what that means for them. */
export const GAPS = {
  calls_unreadable: 'calls in responses cannot be read: they count once the agent has made them',
  no_channel: 'no notice reaches the model: the provider refuses each form of it, or a program reads the results',
  background:
    'responses are made in the background: their client gets them past Governor, so that tokens are estimated, or no ' +
    'call of an agent in them is blocked',
  no_identity: 'nothing shows which session a request continues: it is judged by its transcript alone',
  unread_coding: 'responses have a content coding that cannot be read: no call is blocked, and tokens are estimated',
  path: 'an agent calls a path that is not guarded',
} as const

/** One of these reasons. */
export type Gap = keyof typeof GAPS
