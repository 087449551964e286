import { createRequire } from 'node:module'

const manifest: unknown = createRequire(import.meta.url)('../package.json')

/** The version of Governor, from package.json. */
export const VERSION: string = String((manifest as { version?: unknown }).version)
