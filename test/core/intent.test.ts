import { describe, expect, it } from 'vitest'
import { looksLikeChange, looksLikePoll, saysLittle, saysUnfinished } from '../../src/core/intent.ts'
import { resultText } from '../../src/dialect/parts.ts'

const shell = (command: string) => JSON.stringify({ command })

describe('a call looks like polling', () => {
  it.each([
    ['get_job_status', '{}'],
    ['jobStatus', '{}'],
    ['get_update_status', '{}'],
    ['wait', '{"seconds":5}'],
    ['process', '{"action":"poll","id":3}'],
    ['bash', shell('sleep 30; tail -n 3 train.log')],
    ['bash', shell('tail -f server.log')],
    ['bash', shell('cd app && git status')],
    ['bash', shell('watch -n 1 ls')],
    ['bash', shell('kubectl -n web rollout status deploy/shop')],
    ['bash', shell('cd app; gh run watch 42')],
    ['bash', shell('docker wait builder')],
    ['evaluate', '{"script":"await new Promise(r => setTimeout(r, 3000))"}'],
    ['python', '{"code":"import time; time.sleep(5); print(state())"}'],
  ])('%s %s', (tool, text) => {
    expect(looksLikePoll(tool, text)).toBe(true)
  })

  it.each([
    ['statusbar_text', '{}'],
    ['update_order_status', '{"status":"shipped"}'],
    ['mcp__jira__setIssueStatus', '{}'],
    ['list_orders', '{"status":"open"}'],
    ['bash', shell('npm test 2>&1 | tail -n 20')],
    ['bash', shell('grep -rn status src')],
    ['sql', '{"query":"SELECT status FROM jobs"}'],
    ['read_file', '{"path":"src/retail.ts"}'],
    ['bash', shell('kubectl get pods')],
    ['bash', shell('grep kubectl rollout status.md')],
    ['shop_search', '{"query":"diving watch"}'],
    ['write_file', JSON.stringify({ text: `${'x = 1\n'.repeat(60)}time.sleep(5)` })],
    ['edit_file', '{"path":"a.py","new_text":"time.sleep(5)"}'],
    ['python', JSON.stringify({ code: `${'x = 1\n'.repeat(60)}time.sleep(5)` })],
  ])('unlike %s %s', (tool, text) => {
    expect(looksLikePoll(tool, text)).toBe(false)
  })

  it.each([
    '[still running]',
    'Process running with session ID 4',
    '{"status": "in_progress"}',
    'Report is not ready yet.',
    '{"run_id":7,"life_cycle_state":"RUNNING"}',
    '{"metadata":{"name":"web-0"},"status":{"phase":"Pending"}}',
    'CREATE_IN_PROGRESS',
    'Job 7: running',
    'the build is queued',
    '\n"queued"\n',
    '{"done": false}',
    'Waiting for deployment "web": 0 of 3 updated replicas are available',
    'web-0   0/1     ContainerCreating   0     20s',
    'Build 41: running for 30s',
    'Progress: 35%',
    'Rendering: 99.5 % complete',
    'Your report is being prepared.',
    "Some checks haven't completed yet",
    '[The command timed out. You may wait longer for its output.]',
    'Running in the background',
    'no new mail yet',
  ])('where the tool answers %j', (result) => {
    expect(saysUnfinished(result, 'look')).toBe(true)
  })

  it.each([
    '3 passed',
    'no orders pending',
    'the job market',
    'build passed, running time 3',
    'Progress: 100%',
    '100 % done',
    'state of the art',
    '{"done": true}',
    'ready: 3',
    'Error: streams are not yet supported',
    'export const pending = 1',
    'your task is creating a table',
    'task processing module',
    'The file is being used by another program.',
    `not ready ${'x'.repeat(5_000)}`,
  ])('not where it answers %j', (result) => {
    expect(saysUnfinished(result, 'look')).toBe(false)
  })
})

describe('a tool that changes something', () => {
  it.each(['{"status":"queued"}', 'Submitted', 'state: scheduled'])(
    'has done it where it answers %j',
    (result) => {
      expect(saysUnfinished(result, 'send_message')).toBe(false)
      expect(saysUnfinished(result, 'get_message')).toBe(true)
    },
  )

  it.each(['Process running with session ID 4', 'still running', '{"done":false}'])(
    'still does it where it answers %j',
    (result) => {
      expect(saysUnfinished(result, 'write_stdin')).toBe(true)
    },
  )
})

describe('a result says little', () => {
  it('where it is short, and shows no picture', () => {
    const picture = { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }
    const said = { type: 'text', text: 'Done.' }
    const results = ['', 'Done.', resultText([said]), 'x'.repeat(201), resultText([said, picture])]
    expect(results.map(saysLittle)).toEqual([true, true, true, false, false])
  })
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
    ['place_order', '{}'],
    ['browser_click', '{"ref":"e4"}'],
    ['mcp__phone__reseat_sim_card', '{}'],
    ['resolve_thread', '{}'],
    ['clear_build_logs', '{}'],
    ['bash', shell('kubectl -n web rollout restart deploy/shop')],
    ['bash', shell('export TOKEN=x')],
    ['bash', shell('kill 4711')],
    ['mergePullRequest', '{}'],
    ['computer', '{"action":"left_click","coordinate":[3,4]}'],
    ['http', '{"method":"POST","url":"/jobs"}'],
    ['bash', shell('kubectl scale deploy/web --replicas 3')],
    ['bash', shell('gcloud run deploy shop --image shop:3')],
    ['bash', shell('aws ec2 terminate-instances --instance-ids i-1')],
    ['bash', shell('gh pr merge 12 --squash')],
    ['bash', shell('ansible-playbook site.yml')],
    ['escalate_ticket', '{}'],
    ['shop-fulfill-order', '{}'],
    ['complete_task', '{}'],
    ['mcp__home__call_service', '{}'],
    ['bash', shell('sudo systemctl restart nginx')],
    ['bash', shell('curl -s -X POST localhost:3000/jobs')],
    ['bash', shell('npx prettier src --write')],
    ['bash', shell('python -m pip install -e .')],
    ['bash', shell('uv sync && pytest -q')],
    ['bash', shell('jq .a b.json > c.json')],
    ['bash', shell('python gen.py >> data/all.csv')],
    ['bash', shell("python - <<'EOF'\ntext = read()\nopen('a.py', 'w').write(text)\nEOF")],
    ['execute_cell', '{"code":"df = df.fillna(0)\\ndf.to_csv(name)"}'],
  ])('%s %s', (tool, text) => {
    expect(looksLikeChange(tool, text)).toBe(true)
  })

  it.each([
    ['read_file', '{"path":"edit.ts"}'],
    ['grep', '{"pattern":"delete"}'],
    ['bash', shell('npm test > /dev/null 2>&1')],
    ['sql', '{"query":"SELECT a FROM b WHERE c > 3"}'],
    ['get_order', '{}'],
    ['list_complete_tasks', '{}'],
    ['autocomplete', '{}'],
    ['search_posts', '{}'],
    ['mcp__forum__list_post_likes', '{}'],
    ['bash', shell('kubectl get pods')],
    ['bash', shell('gh run view 12 --log')],
    ['bash', shell('aws s3 ls s3://bucket/set/')],
    ['bash', shell('docker compose logs web')],
    ['bash', shell('npx prettier src --check')],
    ['bash', shell("awk '$3 > 5 {print}' a.txt")],
    ['bash', shell('pytest -q 2>&1')],
    ['bash', shell('grep -rn "<Route>/home" src')],
    ['bash', shell('grep -rn "List<String>.of" src')],
    ['bash', shell('make >/dev/null 2>/dev/null')],
    ['sql', '{"query":"SELECT a FROM b WHERE c > d.e"}'],
    ['python', '{"code":"print(open(name).read())"}'],
    ['mcp__github__pull_request_read', '{}'],
    ['pullRequestList', '{}'],
    ['exchange_rates', '{}'],
    ['place_details', '{}'],
    ['resolve-library-id', '{}'],
    ['type_check', '{}'],
    ['build_logs', '{}'],
    ['bash', shell('export PYTHONPATH=. && pytest -q')],
    ['bash', shell('kill -0 4711')],
    ['bash', shell('unzip -l a.zip')],
    ['bash', shell('git stash list')],
    ['bash', shell('kubectl -n web get deploy')],
    ['bash', shell('kubectl logs deploy/web --tail 20')],
    ['bash', shell('docker logs update')],
    ['play_history', '{}'],
    ['provision_status', '{}'],
  ])('unlike %s %s', (tool, text) => {
    expect(looksLikeChange(tool, text)).toBe(false)
  })
})
