/** The built program with a hand inside: its clock can be set, and its event loop blocked. */
import { existsSync, renameSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { expect, vi } from 'vitest'
import { type Process, startProcess, temporaryFolder } from '../support/process.ts'

export interface Tampered extends Process {
  /** Sets its clock forward, or back, by so many milliseconds. */
  setClock(shift: number): Promise<void>
  /** Lets the machine sleep for so many milliseconds: its clock and its uptime go on, and the process stands still. */
  suspend(milliseconds: number): Promise<void>
  /** Lets nothing else run in it for so many milliseconds; settles when that is over. */
  block(milliseconds: number): Promise<void>
}

/** Starts one for the current test. */
export async function startTampered(upstream: string, config: Record<string, unknown>): Promise<Tampered> {
  const control = join(temporaryFolder(), 'control')
  const governor = await startProcess(upstream, config, {
    nodeArgs: ['--import', resolve('test/faults/preload.mjs')],
    env: { CONTROL: control },
  })
  const tell = async (what: object) => {
    writeFileSync(`${control}.new`, JSON.stringify(what))
    renameSync(`${control}.new`, control)
    governor.child.kill('SIGUSR2')
    await vi.waitFor(() => expect(existsSync(control)).toBe(false), 60_000)
  }
  return {
    ...governor,
    setClock: (shift) => tell({ shift }),
    suspend: (sleep) => tell({ sleep }),
    block: (block) => tell({ block }),
  }
}
