/** What the figures were measured on, without anything that tells whose machine it is. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { availableParallelism, cpus, totalmem, type } from 'node:os'
import { join } from 'node:path'
import { isPinned } from './processes.mjs'
import { findPeer, nginx } from './subjects.mjs'

const PROJECT_MODULES = join(import.meta.dirname, '..', 'node_modules')
const GB = 1024 ** 3

export function describeMachine() {
  const memory = `${Math.round(totalmem() / GB)} GB`
  const pinning = isPinned ? 'the proxy on a core of its own' : 'processes not pinned to cores'
  const cores = `${availableParallelism()} cores`
  return `${cpus()[0].model}, ${cores}, ${memory}, ${type()}; ${pinning}`
}

function packageVersion(name, folder) {
  if (!folder) return undefined
  const { version } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  return `${name} ${version}`
}

function nginxVersion() {
  if (!nginx) return undefined
  return spawnSync(nginx, ['-v'], { encoding: 'utf8' }).stderr.trim().split(' ').at(-1).replace('/', ' ')
}

export function describeVersions() {
  return [
    `Node ${process.versions.node}`,
    packageVersion('Fastify', join(PROJECT_MODULES, 'fastify')),
    packageVersion('undici', join(PROJECT_MODULES, 'undici')),
    packageVersion('@fastify/http-proxy', findPeer('@fastify/http-proxy')),
    packageVersion('Portkey gateway', findPeer('@portkey-ai/gateway')),
    packageVersion('claude-code-router', findPeer('@musistudio/claude-code-router')),
    nginxVersion(),
  ]
    .filter(Boolean)
    .join(', ')
}
