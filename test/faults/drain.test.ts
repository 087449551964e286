/** SIGTERM under load: what runs is finished, and what comes is refused in words. */
import http from 'node:http'
import { expect, it, vi } from 'vitest'
import { callModel, START } from '../support/agent.ts'
import { startProcess } from '../support/process.ts'
import { startHoldingProvider } from './holding-provider.ts'

const STREAMS = 200

/** The status and the error code of an answer on a connection of its own; `refused` where there is no connection. */
async function ask(url: string, path: string, body?: string): Promise<string> {
  return new Promise((resolve) => {
    const request = http.request(`${url}${path}`, { method: body ? 'POST' : 'GET', agent: false })
    request.once('error', (error: NodeJS.ErrnoException) =>
      resolve(error.code === 'ECONNREFUSED' ? 'refused' : `broken: ${error.message}`),
    )
    request.once('response', async (response) => {
      let text = ''
      for await (const part of response) text += part
      resolve(`${response.statusCode} ${JSON.parse(text).error?.code ?? ''}`.trim())
    })
    request.end(body)
  })
}

it('SIGTERM in the middle of 200 streams cuts none of them, while new requests are told to go elsewhere', async () => {
  const provider = await startHoldingProvider()
  const governor = await startProcess(provider.url, { server: { drain_timeout: '10m' } })
  provider.hold()
  const streams = Array.from({ length: STREAMS }, (_, at) =>
    callModel(governor.url, START, { stream: true, headers: { 'x-governor-session': String(at) } }),
  )
  await vi.waitFor(() => expect(provider.held()).toBe(STREAMS), 30_000)
  expect(await ask(governor.url, '/ready')).toBe('200')
  governor.child.kill('SIGTERM')
  await governor.line('draining')
  expect(await ask(governor.url, '/ready')).toBe('503')
  expect(await ask(governor.url, '/health')).toBe('200')
  const others = Array.from({ length: STREAMS }, () => ask(governor.url, '/v1/chat/completions', '{}'))
  expect(new Set(await Promise.all(others))).toEqual(new Set(['503 shutting_down']))
  expect(provider.held()).toBe(STREAMS)
  provider.release()
  for (const { status, finish } of await Promise.all(streams)) {
    expect(status).toBe(200)
    expect(finish).toBe('tool_calls')
  }
  expect(await governor.line('stopped')).toMatchObject({ complete: true })
  expect(await governor.exitCode).toBe(0)
  expect(await ask(governor.url, '/ready')).toBe('refused')
  expect(governor.complaints()).toBe('')
}, 60_000)
