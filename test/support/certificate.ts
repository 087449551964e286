/** A certificate that no authority signed, for servers that speak TLS. */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'

/** Makes a certificate of localhost for the current test; `options`: those of a Redis that speaks TLS on a port. */
export function makeCertificate() {
  const folder = mkdtempSync(join(tmpdir(), 'governor-tls-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')]
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1']
  const made = ['-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-keyout', key, '-out', cert]
  execFileSync('openssl', ['req', ...made, ...subject], { stdio: 'ignore' })
  const files = ['--tls-cert-file', cert, '--tls-key-file', key, '--tls-ca-cert-file', cert]
  return {
    key,
    cert,
    pem: readFileSync(cert),
    options: (port: number) => ['--tls-port', String(port), ...files, '--tls-auth-clients', 'no'],
  }
}
