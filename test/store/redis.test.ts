import { describeWith, isInstalled } from '../support/programs.ts'
import { openReplica, type Program, type Redis, startRedis } from '../support/redis.ts'
import { CONTRACT_TTL, describeStore } from './contract.ts'

/** Takes so many milliseconds off the life that each key, and each session in an index, has left. */
async function age(redis: Redis, ms: number): Promise<void> {
  const script = `local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local left = redis.call('PTTL', key)
    if left >= 0 then redis.call('PEXPIRE', key, left - tonumber(ARGV[1])) end
    if redis.call('TYPE', key).ok == 'zset' then
      for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -ARGV[1], member) end
    end
  end
until cursor == '0'`
  await redis.command('EVAL', script, '0', String(ms))
}

/** Debian's stable release has no valkey-server yet. */
const PROGRAMS: readonly Program[] = isInstalled('valkey-server') ? ['redis-server', 'valkey-server'] : ['redis-server']

for (const program of PROGRAMS) {
  describeWith(program, `over ${program}`, () => {
    describeStore(`the store on ${program}`, async () => {
      const redis = await startRedis(program)
      let passed = 0
      const now = () => Date.now() + passed
      const { store } = await openReplica(redis.url, { ttl: CONTRACT_TTL, now })
      return {
        store,
        pass: async (ms) => {
          passed += ms
          await age(redis, ms)
        },
      }
    })
  })
}
