/** A load balancer that gives each request to the next of several servers. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { freePort } from './redis.ts'

function configOf(folder: string, port: number, urls: readonly string[]): string {
  const servers = urls.map((url) => `server ${new URL(url).host} max_fails=0;`)
  const folders = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${join(folder, name)};`,
  )
  return `daemon off;
master_process off;
error_log stderr error;
pid ${join(folder, 'pid')};
events { worker_connections 2048; }
http {
  access_log off;
  ${folders.join('\n  ')}
  upstream replicas { ${servers.join(' ')} keepalive 128; }
  server {
    listen 127.0.0.1:${port} backlog=1024;
    client_max_body_size 64m;
    location / {
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
    }
  }
}
`
}

async function accepts(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1')
  try {
    await once(socket, 'connect')
    return true
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}

/** Starts nginx in front of servers, for the current test; returns its URL. */
export async function startBalancer(urls: readonly string[]): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'governor-nginx-'))
  const port = await freePort()
  const file = join(folder, 'nginx.conf')
  writeFileSync(file, configOf(folder, port, urls))
  const child = spawn('nginx', ['-p', folder, '-c', file, '-e', 'stderr'], {
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  const exited = once(child, 'exit')
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await exited
    rmSync(folder, { recursive: true, force: true })
  })
  while (child.exitCode === null && !(await accepts(port)));
  if (child.exitCode !== null) throw new Error('nginx did not start')
  return `http://127.0.0.1:${port}`
}
