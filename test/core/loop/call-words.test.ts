import { describe, expect, it } from 'vitest'
import { signatureOf } from '../../../src/core/loop/tool-call.ts'
import { progressIn } from '../../../src/core/loop/tool-result.ts'

const saysWorkGoesOn = (result: string) => progressIn({ callId: '', text: () => result }).goesOn
const read = (name: string, text: string) => signatureOf({ name, arguments: text })

describe('the words of a call', () => {
  it.each([
    ['get_status', '{}'],
    ['jobStatus', '{}'],
    ['bash', '{"command":"sleep 30 && cat log"}'],
    ['bash', '{"command":"kubectl rollout status deploy/web"}'],
    ['browser', '{"action": "wait"}'],
  ])('show that %s %s waits', (tool, args) => {
    expect(read(tool, args).isPoll).toBe(true)
  })

  it.each([
    ['read_file', '{"path":"a.ts"}'],
    ['list_waiters', '{}'],
    ['bash', `{"command":"cat ${'x'.repeat(300)} && sleep 3"}`],
  ])('do not show that %s %s waits', (tool, args) => {
    expect(read(tool, args).isPoll).toBe(false)
  })

  it.each([
    ['str_replace', '{}'],
    ['writeFile', '{}'],
    ['editor', '{"command":"insert"}'],
    ['bash', '{"command":"rm -rf build"}'],
    ['bash', '{"command":"echo 1 > a.txt"}'],
    ['bash', '{"command":"npm test >>out.log"}'],
  ])('show that %s %s changes something', (tool, args) => {
    expect(read(tool, args).isChange).toBe(true)
  })

  it.each([
    ['read_file', '{"path":"updates.md"}'],
    ['bash', '{"command":"ls -la 2>&1"}'],
    ['bash', '{"command":"find / -name x 2> /dev/null"}'],
    ['python', '{"code":"items.map(x => x.id)"}'],
    ['query', '{"sql":"SELECT 1 WHERE a >= 2"}'],
  ])('do not show that %s %s changes something', (tool, args) => {
    expect(read(tool, args).isChange).toBe(false)
  })

  it('are read in linear time', () => {
    for (const piece of ['>', '> ', '-', 'a_', 'A', 'aA'])
      expect(read(piece.repeat(500_000), piece.repeat(500_000)).isPoll).toBeDefined()
  })
})

describe('a tool result', () => {
  it.each(['{"status":"running"}', 'Job 7 is queued.', 'IN_PROGRESS', 'not yet ready', 'Not finished.'])(
    'such as %j says that work goes on',
    (result) => {
      expect(saysWorkGoesOn(result)).toBe(true)
    },
  )

  it.each(['done', 'ran 3 tests', `${'x'.repeat(300)} running`])(
    'such as %j does not say that work goes on',
    (result) => {
      expect(saysWorkGoesOn(result)).toBe(false)
    },
  )
})
