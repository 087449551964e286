/** The manifests of config/k8s, held against the published API of Kubernetes, against each other and against Governor. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { Deployment } from 'kubernetes-types/apps/v1.js'
import type { HorizontalPodAutoscaler } from 'kubernetes-types/autoscaling/v2.js'
import type { ConfigMap, Container, Probe, Service } from 'kubernetes-types/core/v1.js'
import type { NetworkPolicy } from 'kubernetes-types/networking/v1.js'
import type { PodDisruptionBudget } from 'kubernetes-types/policy/v1.js'
import { describe, expect, it, onTestFinished } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { loadConfig } from '../../src/config/load.ts'

interface Manifest {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: { readonly name: string }
}

interface Kinds {
  readonly ConfigMap: ConfigMap
  readonly Deployment: Deployment
  readonly HorizontalPodAutoscaler: HorizontalPodAutoscaler
  readonly NetworkPolicy: NetworkPolicy
  readonly PodDisruptionBudget: PodDisruptionBudget
  readonly Service: Service
}

const FOLDER = 'config/k8s'
const manifests = readdirSync(FOLDER).flatMap((file) =>
  parseAllDocuments(readFileSync(join(FOLDER, file), 'utf8')).map((document) => {
    expect(document.errors).toEqual([])
    return { file, manifest: document.toJS() as Manifest }
  }),
)

/** All manifests of a kind; their shape is what the first test checks. */
function all<K extends keyof Kinds>(kind: K): Kinds[K][] {
  return manifests.flatMap(({ manifest }) => (manifest.kind === kind ? [manifest as Kinds[K]] : []))
}

function named<K extends keyof Kinds>(kind: K, name: string): Kinds[K] {
  const found = all(kind).find(({ metadata }) => metadata?.name === name)
  if (!found) throw new Error(`no ${kind} is called ${name}`)
  return found
}

/** The module of kubernetes-types that has the kinds of an API version: networking.k8s.io/v1 → networking/v1. */
function moduleOf(apiVersion: string): string {
  const [version = '', group = 'core'] = apiVersion.split('/').reverse()
  return resolve('node_modules/kubernetes-types', group.replace('.k8s.io', ''), `${version}.d.ts`)
}

/** What the compiler says of manifests as literals of the types that were generated from Kubernetes' OpenAPI document. */
function problemsOf(documents: readonly Manifest[]): string[] {
  const folder = mkdtempSync(join(tmpdir(), 'governor-manifests-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const lines = documents.map((manifest, index) => {
    const { apiVersion, kind } = manifest
    return `import type { ${kind} as Kind${index} } from '${moduleOf(apiVersion)}'
export const manifest${index}: Kind${index} = ${JSON.stringify(manifest)}`
  })
  const file = join(folder, 'manifests.ts')
  writeFileSync(file, lines.join('\n'))
  const flags = '--noEmit --strict --skipLibCheck --target esnext --module esnext --moduleResolution bundler'
  const tsc = resolve('node_modules/.bin/tsc')
  const { stdout } = spawnSync(tsc, [...flags.split(' '), '--types', '', file], {
    cwd: folder,
    encoding: 'utf8',
  })
  return stdout.split('\n').filter((line) => line.includes('error'))
}

function podOf(deployment: Deployment) {
  const template = deployment.spec?.template
  const { initContainers = [], containers = [], ...pod } = template?.spec ?? {}
  return { ...pod, labels: template?.metadata?.labels, containers: [...initContainers, ...containers] }
}

const pods = all('Deployment').map(podOf)

/** The seconds that a program of a container has from SIGTERM to SIGKILL. */
function secondsToEnd(deployment: Deployment): number {
  const { terminationGracePeriodSeconds = 30, containers } = podOf(deployment)
  const asleep = containers.map(({ lifecycle }) => lifecycle?.preStop?.sleep?.seconds ?? 0)
  return terminationGracePeriodSeconds - Math.max(...asleep)
}

/** Loads the file of the ConfigMap as Governor does. */
function configOf(map: ConfigMap) {
  const folder = mkdtempSync(join(tmpdir(), 'governor-config-map-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'governor.yaml')
  writeFileSync(file, map.data?.['governor.yaml'] ?? '')
  return loadConfig({ config: file }, {}).config
}

describe('config/k8s', () => {
  it('has the manifests of a sidecar, and of replicas with Redis, scaling, disruptions and networks', () => {
    const kinds = manifests.map(({ file, manifest }) => `${file} ${manifest.kind}`)
    expect(new Set(kinds)).toEqual(
      new Set([
        'governor.yaml ConfigMap',
        'governor.yaml Deployment',
        'governor.yaml Service',
        'governor.yaml HorizontalPodAutoscaler',
        'governor.yaml PodDisruptionBudget',
        'governor.yaml NetworkPolicy',
        'redis.yaml Deployment',
        'redis.yaml Service',
        'redis.yaml NetworkPolicy',
        'sidecar.yaml Deployment',
      ]),
    )
  })

  it('admits agents of its namespace and Prometheus of another one to Governor, and nobody else', () => {
    const { spec } = named('NetworkPolicy', 'governor')
    const ports = [{ port: 'http' }]
    expect(spec?.ingress).toEqual([
      { from: [{ podSelector: {} }], ports },
      {
        from: [
          {
            namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'monitoring' } },
            podSelector: { matchLabels: { 'app.kubernetes.io/name': 'prometheus' } },
          },
        ],
        ports,
      },
    ])
  })

  it('has no key and no value that the API of Kubernetes does not have', () => {
    const documents = manifests.map(({ manifest }) => manifest)
    expect(problemsOf(documents)).toEqual([])
    // The check finds what is wrong: an unknown key deep inside, and one that is missing.
    const wrong = structuredClone(named('PodDisruptionBudget', 'governor')) as Manifest & {
      spec: { selector: Record<string, unknown> }
    }
    wrong.spec.selector['matchLabel'] = {}
    expect(problemsOf([wrong])).toEqual([expect.stringContaining('matchLabel')])
  })

  it('lets every pod run under the restricted security standard, with bounds and without a token of Kubernetes', () => {
    expect(pods.length).toBe(3)
    for (const pod of pods) {
      expect(pod).toMatchObject({
        automountServiceAccountToken: false,
        securityContext: { runAsNonRoot: true, seccompProfile: { type: 'RuntimeDefault' } },
      })
      // An image whose user is a name, as Governor's, has to be told a number.
      expect(pod.securityContext?.runAsUser).toBeGreaterThan(0)
      for (const container of pod.containers) {
        expect(container).toMatchObject({
          securityContext: {
            allowPrivilegeEscalation: false,
            readOnlyRootFilesystem: true,
            capabilities: { drop: ['ALL'] },
          },
          resources: { requests: { cpu: expect.any(String), memory: expect.any(String) } },
        })
        expect(container.resources?.limits).toHaveProperty('memory')
        expect(container.image).toMatch(/:\d/)
      }
    }
  })

  it('runs the version of this package', () => {
    const { version } = JSON.parse(readFileSync('package.json', 'utf8'))
    const images = pods.flatMap(({ containers }) => containers.map(({ image = '' }) => image))
    const own = images.filter((image) => image.startsWith('agent-governor'))
    expect(own).toEqual(Array(2).fill(`agent-governor:${version}`))
  })

  it('selects pods by labels that they have, and ports that they name', () => {
    const selectors = [
      ...all('Deployment').map(({ spec }) => spec?.selector.matchLabels),
      ...all('Service').map(({ spec }) => spec?.selector),
      ...all('PodDisruptionBudget').map(({ spec }) => spec?.selector?.matchLabels),
      ...all('NetworkPolicy').map(({ spec }) => spec?.podSelector.matchLabels),
    ]
    for (const selector of selectors) expect(pods.map(({ labels }) => labels)).toContainEqual(selector)
    const ports = pods.flatMap(({ containers }) => containers.flatMap(({ ports = [] }) => ports))
    for (const { spec } of all('Service'))
      for (const { port, targetPort } of spec?.ports ?? [])
        expect(ports).toContainEqual({ name: targetPort, containerPort: port })
    for (const { spec } of all('HorizontalPodAutoscaler')) {
      const { kind, name } = spec?.scaleTargetRef ?? { kind: '', name: '' }
      expect([kind, named('Deployment', name).spec?.replicas]).toEqual(['Deployment', undefined])
    }
  })
})

describe('the Deployment of Governor', () => {
  const deployment = named('Deployment', 'governor')
  const [container] = podOf(deployment).containers as [Container]
  const variable = (name: string) => container.env?.find((entry) => entry.name === name)?.value

  it('reads a configuration that Governor accepts, from the file that its ConfigMap has', () => {
    const [mount] = container.volumeMounts ?? []
    expect(variable('GOVERNOR_CONFIG')).toBe(`${mount?.mountPath}/governor.yaml`)
    expect(podOf(deployment).volumes).toEqual([{ name: mount?.name, configMap: { name: 'governor' } }])
    expect(configOf(named('ConfigMap', 'governor')).ops.metrics_public).toBe(true)
  })

  it('reaches Redis by the name and the port of its Service', () => {
    const { hostname, port } = new URL(variable('REDIS_URL') ?? '')
    expect(named('Service', hostname).spec?.ports?.map((exposed) => String(exposed.port))).toEqual([port])
  })

  it('is asked whether it lives at /health, and whether it takes requests at /ready', () => {
    const pathOf = (probe?: Probe) => [probe?.httpGet?.path, probe?.httpGet?.port]
    expect(pathOf(container.startupProbe)).toEqual(['/health', 'http'])
    expect(pathOf(container.livenessProbe)).toEqual(['/health', 'http'])
    expect(pathOf(container.readinessProbe)).toEqual(['/ready', 'http'])
  })

  it('has more time after SIGTERM than it takes to drain, and sleeps before it', () => {
    expect(container.lifecycle?.preStop?.sleep?.seconds).toBeGreaterThanOrEqual(5)
    const drain = configOf(named('ConfigMap', 'governor')).server.drain_timeout / 1000
    for (const name of ['governor', 'agent']) expect(secondsToEnd(named('Deployment', name))).toBeGreaterThan(drain)
  })
})

describe('the sidecar', () => {
  const { containers } = podOf(named('Deployment', 'agent'))
  const governor = containers.find(({ name }) => name === 'governor')

  it('starts before the agent and listens where the agent alone reaches it', () => {
    expect(governor?.restartPolicy).toBe('Always')
    expect(governor?.env).toEqual([{ name: 'HOST', value: '127.0.0.1' }])
    const urls = containers.flatMap(({ env = [] }) => env.filter(({ name }) => name.endsWith('_BASE_URL')))
    expect(urls.map(({ value = '' }) => new URL(value).host)).toEqual(Array(2).fill('127.0.0.1:8787'))
  })

  it('asks for its health inside the pod, as nothing outside of it can', async () => {
    const statuses = [200, 503]
    const server = http.createServer((_request, response) => response.writeHead(statuses.shift() ?? 500).end())
    await once(server.listen(0, '127.0.0.1'), 'listening')
    onTestFinished(() => void server.close())
    const [program, flag, script = ''] = governor?.startupProbe?.exec?.command ?? []
    expect([program, flag]).toEqual(['node', '-e'])
    expect(governor?.livenessProbe?.exec).toEqual(governor?.startupProbe?.exec)
    const port = String((server.address() as AddressInfo).port)
    for (const expected of [0, 1]) {
      const child = spawn(process.execPath, ['-e', script.replace('8787', port)])
      expect(await once(child, 'exit')).toEqual([expected, null])
    }
  })
})
