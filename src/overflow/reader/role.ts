/** `room`: what the input leaves for the output. */
export type Role = 'limit' | 'value' | 'excess' | 'room'
