/** The role of a number in an overflow. `room`: the tokens that the input leaves for the output. */
export type Role = 'limit' | 'value' | 'excess' | 'room'
