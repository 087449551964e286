/** What is compared. Each subject is a command that listens on one port and proxies to another. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { delimiter, join, resolve } from 'node:path'
import { CORES, isPinned } from './processes.mjs'

const here = import.meta.dirname
const NODE = process.execPath

/** What `npm start` gives Node. */
const { scripts } = JSON.parse(readFileSync(join(here, '..', 'package.json'), 'utf8'))
const START_FLAGS = scripts.start.split(' ').filter((word) => word.startsWith('--'))

function findInPath(name) {
  const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', '/usr/local/sbin']
  return folders.map((folder) => join(folder, name)).find((file) => existsSync(file))
}

export const nginx = findInPath('nginx')
export const redis = findInPath('redis-server')
/** The folder of another version of Governor, built, to compare this one with. */
const otherTree = process.env.BENCH_OTHER ? resolve(process.env.BENCH_OTHER) : undefined
const peers = process.env.BENCH_PEERS ? resolve(process.env.BENCH_PEERS) : undefined

/** The folder of a package among the peers; undefined where it is not installed. */
export function findPeer(name) {
  return peers && existsSync(join(peers, 'node_modules', name)) ? join(peers, 'node_modules', name) : undefined
}

const ROUTER = '@musistudio/claude-code-router'
const PEER_HINT = 'not installed in the folder BENCH_PEERS names'

function script(name, ...args) {
  return ({ port, upstreamPort, nodeFlags }) => ({
    command: [NODE, ...nodeFlags, join(here, 'subjects', name), port, upstreamPort, ...args].map(String),
  })
}

function writeConfig(folder, name, text) {
  mkdirSync(folder, { recursive: true })
  const file = join(folder, name)
  writeFileSync(file, text)
  return file
}

/**
 * The program itself. Its limit is out of reach, so that only what a request declares is ever said or done, and no
 * announcement is added to what a declared limit brings about.
 */
function governor(logLevel, settings = '', { tree = join(here, '..'), preload = [] } = {}) {
  return ({ port, upstreamPort, nodeFlags, folder }) => {
    const text = 'budget: { max_iterations: 100000, warning_threshold: 1, announce: never }\n'
    const config = writeConfig(folder, 'governor.yaml', text + settings)
    const flags = ['--config', config, '--port', port, '--upstream', `http://127.0.0.1:${upstreamPort}`]
    const main = join(tree, 'dist', 'main.js')
    return {
      command: [NODE, ...START_FLAGS, ...nodeFlags, ...preload, main, 'start', ...flags, '--log-level', logLevel].map(
        String,
      ),
    }
  }
}

/**
 * The same with its sessions in a Redis of its own, which runs on the load's core and ends with it; `isAlone`: its CPU
 * time is not Governor's. `more`: further settings.
 */
export function governorOnRedis(settings, more = '') {
  const { port, folder } = settings
  const redisPort = Number(port) > 40_000 ? Number(port) - 20_000 : Number(port) + 20_000
  const store = `store: redis\nredis: { url: 'redis://127.0.0.1:${redisPort}', timeout: 1s }\n`
  const { command } = governor('silent', store + more)(settings)
  const server = `${redis} --port ${redisPort} --bind 127.0.0.1 --save '' --appendonly no --dir ${folder}`
  const pinned = isPinned ? `taskset -c ${CORES.load} ${server}` : server
  // With the shell's place taken by Governor, it is Governor whose death ends the server.
  const script = `setpriv --pdeathsig KILL ${pinned} >/dev/null & sleep 0.5; exec "$@"`
  return { command: ['sh', '-c', script, 'sh', ...command], isAlone: true }
}

/** As an operator sets it up for event streams: one worker, kept-alive upstream connections, nothing held back. */
function nginxConfig({ port, upstreamPort, folder }) {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  return `worker_processes 1;
daemon off;
pid ${folder}/nginx.pid;
error_log stderr crit;
events { worker_connections 1024; }
http {
  access_log off;
  ${temporary.map((name) => `${name}_temp_path ${folder}/${name};`).join(' ')}
  client_max_body_size 64m;
  client_body_buffer_size 128k;
  keepalive_requests 100000000;
  upstream provider { server 127.0.0.1:${upstreamPort}; keepalive 64; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:${port};
    location / {
      proxy_pass http://provider;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 30m;
    }
  }
}
`
}

function nginxCommand(settings) {
  const config = writeConfig(settings.folder, 'nginx.conf', nginxConfig(settings))
  return { command: [nginx, '-p', settings.folder, '-e', 'stderr', '-c', config] }
}

function portkeyCommand({ port, nodeFlags }) {
  const main = join(findPeer('@portkey-ai/gateway') ?? '', 'build', 'start-server.js')
  return {
    command: [NODE, ...nodeFlags, main, '--headless', `--port=${port}`],
    env: { TRUSTED_CUSTOM_HOSTS: '127.0.0.1,localhost' },
  }
}

function portkeyHeaders(upstreamPort) {
  return { 'x-portkey-provider': 'openai', 'x-portkey-custom-host': `http://127.0.0.1:${upstreamPort}/v1` }
}

/** It reads its configuration from the home folder, and takes requests to Messages alone. */
function routerCommand({ port, upstreamPort, nodeFlags, folder }) {
  const url = `http://127.0.0.1:${upstreamPort}/v1/chat/completions`
  const provider = { name: 'bench', api_base_url: url, api_key: 'sk-bench', models: ['gpt-bench'] }
  const config = { LOG: false, PORT: Number(port), Providers: [provider], Router: { default: 'bench,gpt-bench' } }
  writeConfig(join(folder, '.claude-code-router'), 'config.json', JSON.stringify(config))
  const main = join(findPeer(ROUTER) ?? '', 'dist', 'cli.js')
  return { command: [NODE, ...nodeFlags, main, 'start'], env: { HOME: folder } }
}

/**
 * `situation`: see situations.mjs. `isVariant`: of interest for its CPU time only. `headers`: what it must be sent,
 * given the provider's port. `api`: the API
 * that it takes, Chat Completions by default. `missing`: why it is left out.
 */
export const SUBJECTS = [
  { name: 'direct', label: 'no proxy', situation: 'quiet' },
  { name: 'governor', label: 'Governor', situation: 'quiet', command: governor('silent') },
  {
    name: 'governor-other',
    isVariant: true,
    label: 'Governor, the version in BENCH_OTHER',
    situation: 'quiet',
    command: governor('silent', '', { tree: otherTree }),
    missing: otherTree ? undefined : 'BENCH_OTHER names no folder',
  },
  {
    name: 'governor-named',
    isVariant: true,
    label: 'Governor, session header',
    situation: 'named',
    command: governor('silent'),
  },
  {
    name: 'governor-cold',
    isVariant: true,
    label: 'Governor, every session new',
    situation: 'cold',
    command: governor('silent'),
  },
  {
    name: 'governor-logging',
    isVariant: true,
    label: 'Governor, logging',
    situation: 'quiet',
    command: governor('info'),
  },
  {
    name: 'governor-tracing',
    isVariant: true,
    label: 'Governor, tracing',
    situation: 'quiet',
    command: governor('silent', '', { preload: ['--import', join(here, 'subjects', 'tracing.mjs')] }),
  },
  { name: 'governor-notice', label: 'Governor, notice', situation: 'notice', command: governor('silent') },
  {
    name: 'governor-block',
    isVariant: true,
    label: 'Governor, block',
    situation: 'block',
    command: governor('silent', 'loop_guard: { max_warnings_before_block: 0 }\n'),
  },
  { name: 'governor-stop', label: 'Governor, stop', situation: 'stop', command: governor('silent') },
  {
    name: 'governor-redis',
    label: 'Governor, store: redis',
    situation: 'quiet',
    command: (settings) => governorOnRedis(settings),
    missing: redis ? undefined : 'not installed',
  },
  { name: 'pipe', label: 'node:http pipe', situation: 'quiet', command: script('pipe.mjs') },
  { name: 'undici', label: 'undici, body buffered', situation: 'quiet', command: script('undici.mjs') },
  {
    name: 'parse',
    label: 'Fastify, JSON.parse',
    situation: 'quiet',
    command: script('fastify.mjs', 'parse'),
  },
  {
    name: 'reserialise',
    label: 'Fastify, parse and stringify',
    situation: 'quiet',
    command: script('fastify.mjs', 'reserialise'),
  },
  {
    name: 'fastify-proxy',
    label: '@fastify/http-proxy',
    situation: 'quiet',
    command: script('fastify-proxy.mjs', peers),
    missing: findPeer('@fastify/http-proxy') ? undefined : PEER_HINT,
  },
  {
    name: 'nginx',
    label: 'nginx',
    situation: 'quiet',
    command: nginxCommand,
    missing: nginx ? undefined : 'not installed',
  },
  {
    name: 'portkey',
    label: 'Portkey gateway',
    situation: 'quiet',
    command: portkeyCommand,
    headers: portkeyHeaders,
    missing: findPeer('@portkey-ai/gateway') ? undefined : PEER_HINT,
  },
  {
    name: 'router',
    label: 'claude-code-router',
    situation: 'quiet',
    api: 'messages',
    command: routerCommand,
    missing: findPeer(ROUTER) ? undefined : PEER_HINT,
  },
]
