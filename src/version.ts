import { createRequire } from 'node:module'

const manifest: unknown = createRequire(import.meta.url)('../package.json')

/** This version of Governor, as package.json has it. */
export const VERSION: string = String((manifest as { version?: unknown }).version)
