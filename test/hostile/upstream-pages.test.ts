/** Promise: a page of an upstream runs no script in the origin of Governor, where it could read and steer sessions. */
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { ask } from '../support/admin.ts'
import { closeBrowser, isWithoutBrowser, openPage } from '../support/browser.ts'
import { startGovernor } from '../support/governor.ts'
import { serve } from '../support/provider.ts'

afterAll(closeBrowser)

const SCRIPT = "document.title = 'ran'; fetch('/governor/sessions')"
/** Documents that can run a script, by their type. */
const DOCUMENTS: Readonly<Record<string, { readonly type: string; readonly body: string }>> = {
  html: {
    type: 'text/html',
    body: `<title>still</title><script>${SCRIPT}</script><body onload="${SCRIPT}">`,
  },
  xhtml: {
    type: 'application/xhtml+xml',
    body: `<html xmlns="http://www.w3.org/1999/xhtml"><head><title>still</title><script>${SCRIPT}</script></head></html>`,
  },
  svg: {
    type: 'image/svg+xml',
    body: `<svg xmlns="http://www.w3.org/2000/svg"><title>still</title><script>${SCRIPT}</script></svg>`,
  },
  unnamed: { type: '', body: `<!doctype html><title>still</title><script>${SCRIPT}</script>` },
  frame: { type: 'text/html', body: '<title>still</title><iframe src="/v1/html"></iframe>' },
  'its own policy': { type: 'text/html', body: `<title>still</title><script>${SCRIPT}</script>` },
}

async function startPages(status = 200) {
  const upstream = await serve((request, response) => {
    const name = decodeURIComponent(request.url?.split('/').at(-1) ?? '')
    const { type, body } = DOCUMENTS[name] ?? { type: 'text/plain', body: '' }
    const policy = name === 'its own policy' ? { 'content-security-policy': "script-src 'unsafe-inline'" } : {}
    response.writeHead(status, { ...(type ? { 'content-type': type } : {}), ...policy }).end(body)
  })
  onTestFinished(() => upstream.close())
  return { upstream: upstream.url, ...(await startGovernor(upstream.url)) }
}

describe.skipIf(isWithoutBrowser)('a document of an upstream', () => {
  it.each(Object.keys(DOCUMENTS))(
    'runs its scripts in its own origin and not in that of Governor: %s',
    async (name) => {
      const { upstream, url } = await startPages()
      const { page } = await openPage(`${upstream}/v1/${name}`)
      if (name !== 'frame') expect(await page.title()).toBe('ran')
      await page.goto(`${url}/v1/${name}`)
      for (const frame of page.frames()) expect(await frame.title()).toBe('still')
    },
  )

  it('runs none of its scripts as the page of an error either', async () => {
    const { url } = await startPages(404)
    expect(await (await openPage(`${url}/v1/html`)).page.title()).toBe('still')
  })

  it('leaves the page of Governor as it was', async () => {
    const { url } = await startPages()
    const { page, problems } = await openPage(`${url}/governor/`)
    await page.getByText('No sessions yet').waitFor()
    expect(problems).toEqual([])
  })
})

it('a program gets the headers of a page as the upstream sent them', async () => {
  const { url } = await startPages()
  for (const headers of [{}, { accept: 'text/html' }, { 'sec-fetch-mode': 'cors' }])
    expect((await ask(url, '/v1/html', { headers })).headers).not.toHaveProperty('content-security-policy')
})

it('a browser gets the bytes of every answer as the upstream sent them, on guarded paths too', async () => {
  const { url } = await startPages()
  const browser = { 'sec-fetch-site': 'none', 'sec-fetch-dest': 'document' }
  for (const [method, path] of [
    ['GET', '/v1/html'],
    ['POST', '/v1/html'],
    ['POST', '/v1/chat/completions'],
  ] as const) {
    const reply = await ask(url, path, {
      method,
      headers: browser,
      body: method === 'POST' ? { model: 'm', messages: [] } : undefined,
    })
    expect(reply.headers['content-security-policy']).toBe('sandbox')
    if (path === '/v1/html') expect(reply.text).toBe(DOCUMENTS['html']?.body)
  }
})
