/** undici's `request`, in a file of its own, so that a start need not load it. */
export { request } from 'undici'
