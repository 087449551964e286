/** Keeps what a person saw of each agent behind Governor in results.json, from which the table in docs/clients.md is made. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Ran } from './program.ts'

const FILE = join(import.meta.dirname, 'results.json')

/** A row of the table; what a run did not show keeps what an earlier one did. */
export interface Result {
  readonly package: string
  readonly version: string
  /** What a user sets. */
  readonly setting: string
  readonly over: string
  /** What a person sees when the budget runs low, when a call is blocked, and when the run is stopped. */
  readonly caution: string
  readonly block: string
  readonly stop: string
  /** What a person sees where Governor answers an upgrade with 426. */
  readonly upgrade?: string
}

/** Notes what was seen of a client. */
export function record(client: string, seen: Partial<Result>): void {
  const results = JSON.parse(readFileSync(FILE, 'utf8')) as Record<string, Partial<Result>>
  results[client] = { ...results[client], ...seen }
  writeFileSync(FILE, `${JSON.stringify(results, null, 2)}\n`)
}

/** Returns what a person sees of a run that should end in this answer. */
export function seenIn({ code, stdout, stderr }: Ran, answer: string): string {
  const said = stdout.includes(answer) ? 'the model’s answer' : 'nothing'
  const notice = /\[(?:BUDGET|LOOP GUARD)/.test(stdout + stderr) ? ', and the notice' : ''
  return `${said}${notice}${code === 0 ? '' : `; exit code ${code}`}`
}
