/**
 * A small file that all Governors of a user on a machine share: it is replaced as a whole, by one process at a time.
 */
import { mkdir, open, readFile, rename, stat, unlink, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { setTimeout as wait } from 'node:timers/promises'
import { codeOf, ignore } from '../core/thrown.ts'

/**
 * Takes the lock of a file, and returns what gives it back; `undefined` if another process has it. `maxAge`:
 * milliseconds after which that process counts as killed.
 */
export async function tryLock(path: string, maxAge: number): Promise<(() => Promise<void>) | undefined> {
  const lock = `${path}.lock`
  try {
    await (await open(lock, 'wx', 0o600)).close()
    return () => unlink(lock).catch(ignore)
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error
  }
  const since = (await stat(lock).catch(ignore))?.mtimeMs ?? Date.now()
  // One from the future: the clock was set back since.
  if (Math.abs(Date.now() - since) > maxAge) await unlink(lock).catch(ignore)
  return undefined
}

const MAX_LOCK_AGE = 5_000
const LOCK_RETRY_MS = 10
/** They take longer than a lock counts whose process was killed. */
const LOCK_RETRIES = MAX_LOCK_AGE / LOCK_RETRY_MS + 100

/** Does something with a file while no other process does. @throws if another process holds it for seconds. */
export async function whileLocked<Result>(path: string, work: () => Promise<Result>): Promise<Result> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 })
  for (let attempt = 0; attempt < LOCK_RETRIES; attempt++) {
    const unlock = await tryLock(path, MAX_LOCK_AGE)
    if (unlock) return work().finally(unlock)
    await wait(LOCK_RETRY_MS)
  }
  throw new Error(`${path}.lock is held by another process`)
}

/**
 * Reads a file as `contentIn` does; `undefined` if there is no file. If `contentIn` returns nothing, the file is torn
 * or not one of Governor's: it is renamed to `aside`, and `setAside` is called.
 */
export async function readShared<Content>(
  path: string,
  contentIn: (text: string) => Content | undefined,
  aside: string,
  setAside: (name: string) => void,
): Promise<Content | undefined> {
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    if (codeOf(error) === 'ENOENT' || codeOf(error) === 'ENOTDIR') return undefined
    throw error
  }
  const content = contentIn(text)
  if (content !== undefined) return content
  await rename(path, aside)
  setAside(aside)
  return undefined
}

/** Writes a file in place of the one that is there: no process reads half of it. Call it while the file is locked. */
export async function replaceShared(path: string, content: object): Promise<void> {
  await writeFile(`${path}.new`, `${JSON.stringify(content)}\n`, { mode: 0o600, flush: true })
  await rename(`${path}.new`, path)
}
