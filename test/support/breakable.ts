/** Functions that count their calls, and throw where a test says so: of objects, and of the modules of a folder. */
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { vi } from 'vitest'

/** Returns the error that a call of a function throws, if it is to throw. It is called for each call. */
export type FaultOf = (name: string) => Error | undefined

const isPlain = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype

/** Returns a value whose functions, and those of all that they return, throw what `faultOf` returns. */
export function breakable<Value>(value: Value, faultOf: FaultOf, path = ''): Value {
  if (Array.isArray(value)) return value.map((one) => breakable(one, faultOf, path)) as Value
  if (!isPlain(value)) return value
  return new Proxy(value, {
    get(target, key) {
      const member: unknown = Reflect.get(target, key)
      const name = `${path}.${String(key)}`
      if (typeof member !== 'function') return breakable(member, faultOf, name)
      return (...args: unknown[]) => {
        const fault = faultOf(name)
        const result: unknown = member.apply(target, args)
        if (result instanceof Promise) return fault ? Promise.reject(fault) : result
        if (fault) throw fault
        return breakable(result, faultOf, name)
      }
    },
  }) as Value
}

const SRC = fileURLToPath(new URL('../../src', import.meta.url))

/**
 * Makes the exported functions of all modules in a folder of `src` breakable for what is imported from now on; returns
 * what ends that. Test files share their modules, so the test that begins it has to end it.
 */
export function breakModules(folder: string, faultOf: FaultOf): () => void {
  const names = readdirSync(join(SRC, folder), { recursive: true, encoding: 'utf8' })
  const paths = names.filter((name) => name.endsWith('.ts')).map((name) => join(SRC, folder, name))
  vi.resetModules()
  for (const path of paths)
    vi.doMock(path, async (load) => {
      const exports: Record<string, unknown> = { ...(await load<Record<string, unknown>>()) }
      for (const [key, member] of Object.entries(exports)) {
        if (typeof member !== 'function' || /^class/.test(String(member))) continue
        exports[key] = (...args: unknown[]) => {
          const fault = faultOf(`${path.slice(SRC.length)} ${key}`)
          if (fault) throw fault
          return member(...args)
        }
      }
      return exports
    })
  return () => {
    for (const path of paths) vi.doUnmock(path)
    vi.resetModules()
  }
}
