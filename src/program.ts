import { fileURLToPath } from 'node:url'

/** The path of the built program, which works in every folder, whether or not `governor` is a command there. */
export const PROGRAM = fileURLToPath(new URL('../dist/main.js', import.meta.url))
