import { describe, expect, it } from 'vitest'
import { looksLikeChange, looksLikePoll, saysUnfinished } from '../../src/core/intent.ts'

const shell = (command: string) => JSON.stringify({ command })

describe('a call looks like polling', () => {
  it.each([
    ['get_job_status', '{}'],
    ['jobStatus', '{}'],
    ['wait', '{"seconds":5}'],
    ['process', '{"action":"poll","id":3}'],
    ['bash', shell('sleep 30; tail -n 3 train.log')],
    ['bash', shell('tail -f server.log')],
    ['bash', shell('cd app && git status')],
    ['bash', shell('watch -n 1 ls')],
  ])('%s %s', (tool, text) => {
    expect(looksLikePoll(tool, text)).toBe(true)
  })

  it.each([
    ['statusbar_text', '{}'],
    ['list_orders', '{"status":"open"}'],
    ['bash', shell('npm test 2>&1 | tail -n 20')],
    ['bash', shell('grep -rn status src')],
    ['sql', '{"query":"SELECT status FROM jobs"}'],
    ['read_file', '{"path":"src/retail.ts"}'],
  ])('unlike %s %s', (tool, text) => {
    expect(looksLikePoll(tool, text)).toBe(false)
  })

  it.each([
    '[still running]',
    'Process running with session ID 4',
    '{"status": "in_progress"}',
    'Report is not ready yet.',
  ])('where the tool answers %j', (result) => {
    expect(saysUnfinished(result)).toBe(true)
  })

  it.each(['3 passed', 'no orders pending', `not ready ${'x'.repeat(5_000)}`])(
    'not where it answers %j',
    (result) => {
      expect(saysUnfinished(result)).toBe(false)
    },
  )
})

describe('a call looks like a change', () => {
  it.each([
    ['edit_file', '{}'],
    ['applyPatch', '{}'],
    ['str_replace_editor', '{"command":"insert","path":"a"}'],
    ['bash', shell("sed -i 's/a/b/' a.ts")],
    ['bash', shell('cd app && npm install left-pad')],
    ['bash', shell("cat > a.py << 'EOF'\nprint(1)\nEOF")],
    ['sql', '{"query":"UPDATE jobs SET done = 1"}'],
  ])('%s %s', (tool, text) => {
    expect(looksLikeChange(tool, text)).toBe(true)
  })

  it.each([
    ['read_file', '{"path":"edit.ts"}'],
    ['grep', '{"pattern":"delete"}'],
    ['bash', shell('npm test > /dev/null 2>&1')],
    ['sql', '{"query":"SELECT a FROM b WHERE c > 3"}'],
  ])('unlike %s %s', (tool, text) => {
    expect(looksLikeChange(tool, text)).toBe(false)
  })
})
