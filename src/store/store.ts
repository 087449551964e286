/** Where sessions are remembered between requests. */
import type { Session } from '../core/session.ts'

/**
 * A session's key: the tenant (a hash of the credential, never the credential) and the session's id. Two tenants
 * never share one.
 */
export interface SessionKey {
  readonly tenant: string
  readonly id: string
}

export interface Store {
  /**
   * Replaces a session by what `change` makes of it and returns what `change` adds. `change` is pure: a store that
   * several processes share may run it again after losing a race.
   */
  update<T>(
    key: SessionKey,
    change: (session: Session | undefined) => { session: Session; result: T },
  ): Promise<T>
  /** Sessions held now. */
  readonly size: number
}
