// Writes the declarations of `agent-governor/fetch` from config/schema.json: a user's compiler needs none of the packages in the bundle.

/** The TypeScript type of a JSON Schema. */
function typeOf(schema, indent) {
  const { anyOf, const: only, enum: values, items, properties, additionalProperties: rest, type } = schema
  if (anyOf) return anyOf.map((one) => typeOf(one, indent)).join(' | ')
  if (values ?? only)
    return [values ?? only]
      .flat()
      .map((value) => JSON.stringify(value))
      .join(' | ')
  if (properties) return `{\n${fieldsOf(schema, `${indent}  `)}${indent}}`
  if (type === 'object') return `Readonly<Record<string, ${rest ? typeOf(rest, indent) : 'unknown'}>>`
  if (type === 'array') return `ReadonlyArray<${typeOf(items, indent)}>`
  return type === 'integer' ? 'number' : (type ?? 'unknown')
}

/** The fields of an object, each with its description. */
function fieldsOf({ properties, required = [] }, indent) {
  return Object.entries(properties)
    .map(([name, schema]) => {
      const { description, default: value } = schema
      const isShown = value !== undefined && value !== '' && JSON.stringify(value) !== '{}'
      const text = [description?.replace(' Reloaded on SIGHUP.', ''), isShown && `Default: ${JSON.stringify(value)}.`]
      const comment = `${indent}/** ${text.filter(Boolean).join(' ').replaceAll('*/', '* /')} */\n`
      return `${comment}${indent}readonly ${name}${required.includes(name) ? '' : '?'}: ${typeOf(schema, indent)}\n`
    })
    .join('')
}

export function fetchTypes({ properties }, names) {
  const sections = Object.fromEntries(names.map((name) => [name, properties[name]]))
  return `/** Sections of \`governor.yaml\`, and who gets the events that Governor logs and counts. */
export interface GovernedOptions {
${fieldsOf({ properties: sections }, '  ')}  readonly onEvent?: (event: { readonly kind: string }) => void
}
/**
 * Returns a \`fetch\` whose requests to models are guarded as Governor guards them: it counts, warns, blocks and stops the
 * runs of agents. What it does not guard goes to the given \`fetch\` as it is. Throws on a wrong option.
 */
export declare function governed(fetch?: typeof globalThis.fetch, options?: GovernedOptions): typeof globalThis.fetch
`
}
