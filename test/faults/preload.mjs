/**
 * Loaded into the program before itself (`--import`): does what a test writes into the file CONTROL and sends SIGUSR2 for, then
 * removes the file. `shift`: milliseconds by which the system's clock is set; `block`: for how long nothing else runs; `sleep`:
 * for how long the machine slept.
 * MEMORY: the bytes that its container may use.
 */
import { readFileSync, rmSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import os from 'node:os'

const SystemDate = Date
let shift = 0

globalThis.Date = class extends SystemDate {
  constructor(...parts) {
    if (parts.length === 0) super(SystemDate.now() + shift)
    else super(...parts)
  }

  static now() {
    return SystemDate.now() + shift
  }
}

const { uptime } = os
let slept = 0
os.uptime = () => uptime() + slept / 1_000
syncBuiltinESMExports()

if (process.env.MEMORY) process.constrainedMemory = () => Number(process.env.MEMORY)

process.on('SIGUSR2', () => {
  const asked = JSON.parse(readFileSync(process.env.CONTROL, 'utf8'))
  shift += (asked.shift ?? 0) + (asked.sleep ?? 0)
  slept += asked.sleep ?? 0
  const end = performance.now() + (asked.block ?? 0)
  while (performance.now() < end);
  rmSync(process.env.CONTROL)
})
