// Writes what is made from src/config: config/schema.json, config/governor.yaml, and the tables in docs/configuration.md and docs/commands.md;
// and from what was seen of agents, the table in docs/clients.md.
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { build } from 'esbuild'

const root = join(import.meta.dirname, '..')
// Node 20 runs no TypeScript.
const outfile = join(root, 'node_modules', '.documents.mjs')
const entryPoints = [join(import.meta.dirname, 'documents.ts')]
await build({ entryPoints, outfile, bundle: true, format: 'esm', platform: 'node', packages: 'external' })
const documents = await import(pathToFileURL(outfile).href)
const { clientsTable, commentedFile, configurationTable, jsonSchema, settingsTable } = documents
rmSync(outfile)

writeFileSync(join(root, 'config', 'schema.json'), `${JSON.stringify(jsonSchema(), null, 2)}\n`)
writeFileSync(join(root, 'config', 'governor.yaml'), commentedFile())

/** Replaces the table with this head in a document. */
function replaceTable(name, head, table) {
  const file = join(root, name)
  const text = readFileSync(file, 'utf8')
  writeFileSync(
    file,
    text.replace(new RegExp(`^\\| ${head} \\|.*\n(?:\\|.*\n)+`, 'm'), () => table),
  )
}

replaceTable('docs/configuration.md', 'key \\| default', configurationTable())
replaceTable('docs/commands.md', 'flag \\| variable', settingsTable())

const results = readFileSync(join(root, 'test', 'agents', 'results.json'), 'utf8')
replaceTable('docs/clients.md', 'client \\| tried with', clientsTable(JSON.parse(results)))
